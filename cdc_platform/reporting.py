"""What a long-running service tells those who watch it; `stack/report.py` writes it down.

Belongs here: the protocol alone, so that `capture` and `landing` know nothing of the stack.
"""

import threading
from typing import Any, Protocol


class Report(Protocol):
    """A service's voice."""

    stopping: threading.Event  # Set when the service should end, losing nothing.

    def ready(self, **facts: Any) -> None:
        """Say that the service does its work."""
        ...

    def progress(self, **facts: Any) -> None:
        """Update the facts shown beside it."""
        ...
