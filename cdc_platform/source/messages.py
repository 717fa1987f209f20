"""Logical messages: what we send through the source's replication stream, in the order of its commits.

Belongs here: emitting, and the prefixes by which capture knows them. Does not: what capture does when it meets one
(`capture/batch.py`). Another application's messages have other prefixes; `cdc_platform.` is ours.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from cdc_platform.errors import UnavailableError
from cdc_platform.source.postgres import address, connected

CUT_PREFIX = "cdc_platform.cut"
REPLAY_PREFIX = "cdc_platform.replay"


def emit_cut(engine: Engine, cut_id: str) -> None:
    """Send a message after everything that is committed now: capture notes where the logs end when it meets it.

    Raises UnavailableError where that is not allowed: on a standby, or to a role without EXECUTE.
    """
    _emit(engine, CUT_PREFIX, cut_id)


def wake(engine: Engine) -> None:
    """Send a cut that nobody asks for, so that a stream which has just begun does what it was asked for.

    Debezium looks for its place until a first record comes behind it, and begins no load before (seen, 3.6.3): on a
    quiet source that may be hours. Where no message may be emitted, the source's next change does it.
    """
    with suppress(UnavailableError):
        emit_cut(engine, f"wake {uuid.uuid4().hex}")


def emit_replay(engine: Engine, table: str, record: Mapping[str, object]) -> None:
    """Have capture append `record` to the table's log, as one line, after everything that is committed now.

    `table` is its name in tables.yaml. Delivery is capture's: at least once, so who reads must know it again. A
    record that begins like one of the log's markers is refused there, and counted as `replay_refused`.

    Raises UnavailableError as `emit_cut` does.
    """
    _emit(engine, REPLAY_PREFIX, json.dumps({"table": table, "record": dict(record)}, separators=(",", ":")))


def _emit(engine: Engine, prefix: str, content: str) -> None:
    try:
        with connected(engine) as connection:
            connection.execute(
                text("SELECT pg_logical_emit_message(true, :prefix, :content)"),
                {"prefix": prefix, "content": content},
            )
            connection.commit()
    except DBAPIError as error:
        raise UnavailableError(
            f"no logical message may be emitted ({type(error.orig).__name__})",
            where=address(engine),
            action="Point the source at the primary, and grant EXECUTE on pg_logical_emit_message",
        ) from error
