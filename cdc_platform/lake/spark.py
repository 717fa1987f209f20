"""Statements through Spark Connect: SQL text in, rows or a pandas frame out.

Belongs here: sessions, identifiers and literals in SQL, translating Spark's errors, bounding a statement's time, and
what a statement opened (executed-plan metrics). Does not: the statements themselves, which live with their stage.
Units: `*_s` are seconds.
Rules (Spark 4.1.4, measured): a server goes on with a statement whose client was killed, and commits it; it stops when
the client interrupts it or closes its session, as `spark_session` does on its way out, a cancelled run's too. For a
client that could not, the server's own `detachedTimeout` ends it (`stack/spark.py`).
Not every ValidationException of Iceberg is a conflict: a refused request (`gc.enabled=false`) is one too.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import (
    CdcError,
    CommitUnknownError,
    ConfigError,
    ConflictError,
    InvariantError,
    LimitError,
    UnavailableError,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.connect.session import SparkSession

_CONNECT_WITHIN_S = 10
_INTERRUPT_AGAIN_S = 1.0
_RETRIES_MAX, _RETRY_WAIT_MAX_MS = 5, 4_000  # About 10 s in all; the client's own default is 10 minutes.
_READING = ("SELECT", "REFRESH", "DESCRIBE", "SHOW")
_GONE = (
    "UNAVAILABLE",
    "SESSION_CLOSED",
    "INVALID_HANDLE",
    "SESSION_NOT_FOUND",
)  # A server that restarted knows no session.
_CANCELLED = "OPERATION_CANCELED"
_UNKNOWN = "CommitStateUnknownException"
_LOST = ("CommitFailedException", "ValidationException")  # Iceberg: another commit won, in two words.
_REFUSED = ("GC is disabled", "Unable to determine whether certain files are orphan")  # The second word also says this.


def quoted(*names: str) -> str:
    """An identifier for Spark SQL, each part in backticks."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def text(value: str) -> str:
    """A string literal for Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class FilesOpened:
    """Files that one executed statement planned to read."""

    data: int
    deletes: int

    @property
    def total(self) -> int:
        """Data and delete files together."""
        return self.data + self.deletes


class Spark:
    """One Spark Connect session; its settings are its own, so a MERGE can stamp its snapshot."""

    def __init__(self, session: "SparkSession", url: str) -> None:
        self._session = session
        self._url = url

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Run `sql` and return its rows."""
        with self._translated(sql):
            return [row.asDict() for row in self._session.sql(sql).collect()]

    def frame(self, sql: str) -> "pd.DataFrame":
        """Run `sql` and return its rows as pandas."""
        with self._translated(sql):
            return self._session.sql(sql).toPandas()

    def rows_and_files(self, sql: str) -> tuple[list[dict[str, Any]], FilesOpened]:
        """Run `sql`; return its rows and the files its scans read, 0 when metadata alone answered."""
        with self._translated(sql):
            frame = self._session.sql(sql)
            rows = [row.asDict() for row in frame.collect()]
            info: Any = frame.executionInfo
            counts = {"resultDataFiles": 0, "resultDeleteFiles": 0}
            for node in info.metrics._metrics:
                for metric in node.metrics:
                    if metric.name in counts:
                        counts[metric.name] += int(metric.value)
            return rows, FilesOpened(counts["resultDataFiles"], counts["resultDeleteFiles"])

    @contextmanager
    def settings(self, values: Mapping[str, str]) -> Generator[None]:
        """Set this session's configuration for a block and take it back after."""
        for key, value in values.items():
            self._session.conf.set(key, value)
        try:
            yield
        finally:
            for key in values:
                self._session.conf.unset(key)

    @contextmanager
    def within(self, seconds: float, *, setting: str) -> Generator[None]:
        """Stop what this session runs after `seconds`; raise LimitError, which names `setting`, if that was needed.

        Over already, it raises at once. What was committed before stays.
        The server stops a procedure between its jobs: one that is committing ends so.
        """
        if seconds <= 0:
            raise LimitError(
                "its time was over before this statement", where=setting, action=f"Raise {setting} if it needs longer"
            )
        over, ended = threading.Event(), threading.Event()

        def stop() -> None:
            if ended.wait(seconds):
                return
            over.set()
            while True:  # Ends with the block. One that comes between two statements stops neither.
                self.interrupt()
                if ended.wait(_INTERRUPT_AGAIN_S):
                    return

        watch = threading.Thread(target=stop, daemon=True)
        watch.start()
        try:
            yield
        except CdcError as error:
            if not over.is_set():
                raise
            raise LimitError(
                f"it was stopped after {seconds:.0f} s",
                where=error.where,
                action=f"What was committed before stays. Raise {setting} if it needs longer",
            ) from error
        finally:
            ended.set()
            watch.join(_CONNECT_WITHIN_S)  # An interrupt that is under way must not meet the next statement.

    def interrupt(self) -> None:
        """Have the server stop all that this session runs."""
        with suppress(Exception):  # A server that is gone runs nothing.
            self._session.interruptAll()

    @contextmanager
    def _translated(self, sql: str) -> Generator[None]:
        from grpc import RpcError
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            message = str(error)
            if _UNKNOWN in message:
                raise CommitUnknownError(
                    "the catalog gave no answer to a commit", where=_head(sql), action="Run it again: it looks first"
                ) from error
            if any(refused in message for refused in _REFUSED):
                raise ConfigError(
                    f"Iceberg refuses it ({_first_line(message)})",
                    where=_head(sql),
                    action="Change the table's properties, or leave this table out",
                ) from error
            if any(name in message for name in _LOST):
                raise ConflictError(
                    "another writer committed first",
                    where=_head(sql),
                    action="Run it again: it reads the table anew",
                ) from error
            if _CANCELLED in message or any(sign in message for sign in _GONE):
                raise self._no_answer(sql) from error
            raise InvariantError(
                f"Spark refuses the statement ({_first_line(message) or type(error).__name__})",
                where=_head(sql),
                action="Look at the table's columns and at Spark's log (`cdc-platform logs spark`), and report it",
            ) from error
        except RpcError as error:
            raise self._no_answer(sql) from error

    def _no_answer(self, sql: str) -> CdcError:
        """A statement that may commit may also have committed: the tables are read before it is run again."""
        if not sql.lstrip().upper().startswith(_READING):
            return CommitUnknownError(
                f"Spark Connect at {self._url} gave no answer", where=_head(sql), action="Run it again: it looks first"
            )
        return UnavailableError(
            "Spark Connect does not answer",
            where=self._url,
            action="Start it (`cdc-platform up`) or correct SPARK_REMOTE, then run this again",
        )


def _head(sql: str) -> str:
    return " ".join(sql.split())[:80]


def _first_line(message: str) -> str:
    """The first that says something: a parse error begins with an empty one."""
    return next((line.strip() for line in message.splitlines() if line.strip()), "")


def require_spark(url: str) -> None:
    """Raise UnavailableError unless something listens at `url` (`sc://host:port`)."""
    import socket
    from urllib.parse import urlparse

    address = urlparse(url)
    try:
        socket.create_connection((address.hostname or "", address.port or 15002), _CONNECT_WITHIN_S).close()
    except OSError as error:
        raise UnavailableError(
            "nothing listens there",
            where=f"Spark Connect at {url}",
            action="Start it (`cdc-platform up`) or correct SPARK_REMOTE; what waits for it goes on then",
        ) from error


@contextmanager
def spark_session(url: str) -> Generator[Spark]:
    """A session of its own on the server at `url` (`sc://host:port`); refuses quickly when none listens."""
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    require_spark(url)
    session = SparkSession.builder.remote(url).create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES_MAX, max_backoff=_RETRY_WAIT_MAX_MS)])
    spark = Spark(session, url)
    try:
        yield spark
    finally:
        spark.interrupt()  # A cancelled run leaves by here: its statement would go on and commit unseen.
        with suppress(Exception):  # A server that is gone has ended the session itself.
            session.stop()


def columns_sql(names: Sequence[str], alias: str | None = None) -> str:
    """A comma-separated list of quoted columns, each under `alias` if one is given."""
    return ", ".join(quoted(alias, name) if alias else quoted(name) for name in names)
