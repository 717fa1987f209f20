"""What a stage has to hold, exactly, while the source goes on changing.

The source is read once, in one transaction: its state, its WAL position and which transactions the state holds
(`pg_current_snapshot`). A stage stands somewhere else: complete through a position of the change log. What lies
between is in the log: each event there whose transaction the source's state does not hold moves that state, by
its before and after image (REPLICA IDENTITY FULL). The result is compared with the stage. So a difference is a
difference, however busy the source is.

Worked case: the log ended at 10 before the cut, and the cut saw transactions below 700. The stage is complete
through 13. Record 10 is of transaction 699 (the cut holds it: skip), 11 inserts a row in 701 (+1), 12 is record
10 delivered again (skip). Expected = cut + the row of record 11.

Belongs here: visibility and the move. Does not: reading the log (`changelog`) or waiting (`convergence/converge.py`).
"""

import json
from collections.abc import Iterable
from typing import Any

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA
from cdc_platform.convergence.state import moved
from cdc_platform.errors import UnavailableError
from cdc_platform.source.state import Cut, Measures, State


class LoadUnderWayError(Exception):
    """An initial load lies between the cut and the stage: the log does not say how it moved the state."""


def expected_state(measures: Measures, cut: Cut, lines: Iterable[bytes]) -> State:
    """The cut's state moved over `lines`, the records from the log's end before the cut to the stage's position.

    A replayed dead letter moves nothing: its first record did. Raises LoadUnderWayError when one of them belongs to an
    initial load, UnavailableError when one can't be read, for it may have moved anything.
    """
    state = cut.state
    seen: set[tuple[int, int, str]] = set()  # Bounded by what was committed between the cut and the stage.
    for line in lines:
        event = _event(line)
        op = event["op"]
        if op in {LOAD_BEGIN, LOAD_END, "r"}:
            raise LoadUnderWayError
        if op == SCHEMA or event.get("replay") is not None:
            continue
        identity = _identity(event)
        if cut.holds(identity[0]) or identity in seen:
            continue
        seen.add(identity)
        if op == "t":
            state = State(0, dict.fromkeys(measures.sums, 0), {})
            continue
        rows = [(-1, event["before"]), (1, event["after"])]
        state = moved(measures, state, [(sign, row) for sign, row in rows if row is not None])
    return state


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
        return {"op": event["op"], **event}
    except (ValueError, TypeError, KeyError) as error:
        raise UnavailableError(
            "a record in the change log can't be read, so it is not known what landing should hold",
            where="convergence",
            action="Look at the dead letters, which name it; the check is right again once the stage has passed it",
        ) from error


def _identity(event: dict[str, Any]) -> tuple[int, int, str]:
    """Transaction, LSN and content: what a second delivery of the same event has, too.

    Not the ordinal, which may count from elsewhere when Debezium resumes inside a transaction; and the LSN alone is
    shared by rows of one COPY, each of another key.
    """
    source: dict[str, Any] = event["source"]
    return int(source["txId"]), int(source["lsn"]), repr((event["op"], event["before"], event["after"]))
