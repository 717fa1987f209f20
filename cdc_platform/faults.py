"""Named steps at which the crash lab can stop a process, as a power cut would.

Belongs here: the steps' names, and the call that marks one. Does not: who arms a step, which is the lab's child
process (`cdc_platform_tests/crashlab`): nothing in the product does, and no environment variable can.
"""

from collections.abc import Callable
from typing import Literal

Step = Literal[
    "segment written",  # Records are in the segment file, not synced.
    "acknowledged",  # The log is durable and Debezium has been told so.
    "offset flushed",  # Debezium has stored its offset.
    "parquet written",  # The window's files exist, no commit yet.
    "commit sent",  # Just before the catalog is asked.
    "commit answered",  # The catalog has committed; the sink has not taken note.
]

_armed: list[Callable[[Step], None]] = []


def reach(step: Step) -> None:
    """Mark that the process has come to `step`. Does nothing unless a lab armed it."""
    for fault in _armed:
        fault(step)


def arm(fault: Callable[[Step], None]) -> None:
    """Call `fault` at each step from now on; it may kill the process or raise."""
    _armed.append(fault)
