"""The embedded Debezium engine: started with properties, fed to a handler, its end surfaced.

Belongs here: the JVM and the engine's callbacks. Does not: what the handler does.
Rules: a batch is acknowledged when the handler has returned, never before. A bad option, or anything else that
ends the engine, arrives in its completion callback: it is raised to the caller, for a silent engine would look
like a source without changes. JPype starts one JVM in a process, for good: one engine, one process. `-Xrs` leaves
SIGTERM to the service.
"""

# JPype's classes carry no types; what comes from Java is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cdc_platform.capture.batch import acknowledgeable
from cdc_platform.errors import CdcError, ConfigError, UnavailableError
from cdc_platform.faults import reach

_STOP_WITHIN_S = 20
_CORRECT = "Correct the option it names"
_CONFIGURATION = ("configuration is not valid", "ConfigException", "is invalid")


def run_engine(
    properties: Mapping[str, str],
    handle: Callable[[Iterable[tuple[str, str | None]]], None],
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
    ensure_jvm_started(jvm_opts=["-Xrs", "-Xms64m", f"-Xmx{memory_mb}m", f"-Dlog4j2.configurationFile={log_settings}"])
    import jpype
    from pydbzengine.engine._jvm import EngineFormat, JDebeziumEngine, JProperties

    failures: list[BaseException] = []
    offsets = Path(properties["offset.storage.file.filename"])
    ended: list[tuple[bool, str]] = []

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Consumer:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:
            batch = [(str(r.destination()), _text(r.value())) for r in records]
            try:
                handle(batch)
            except BaseException as error:
                failures.append(error)
                raise
            if (index := acknowledgeable(batch)) is not None:
                committer.markProcessed(records[index])  # An offset stands for everything before it.
            stored = _changed_at(offsets)
            committer.markBatchFinished()
            reach("acknowledged")
            if _changed_at(offsets) != stored:  # Debezium flushes in this call when the interval has passed.
                reach("offset flushed")

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
        engine.close()
        thread.join(_STOP_WITHIN_S)
    if failures:
        raise failures[0]
    if not stopping.is_set():
        raise _ended(where, ended[0][1] if ended else "it ended without a word")


def _changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


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
