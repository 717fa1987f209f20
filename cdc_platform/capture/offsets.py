"""How far a capture had come, as Debezium's offset file tells it.

Belongs here: reading that file. Does not: writing it, which is Debezium's alone.
Rule: the file is a Java-serialised map of byte arrays, and a byte array is stored as it is, so each offset stands in it
as one flat JSON object (seen in Debezium 3.6.3; a test runs against the real file).
"""

import json
import re
from pathlib import Path

_OBJECT = re.compile(rb"\{[^{}]*\}")


def captured_lsn(file: Path) -> int | None:
    """WAL byte position of the newest stored offset, or None before the first."""
    try:
        stored = file.read_bytes()
    except FileNotFoundError:
        return None
    found: list[int] = []
    for text in _OBJECT.findall(stored):
        try:
            offset = json.loads(text)
        except ValueError:
            continue
        found += [int(offset[key]) for key in ("lsn", "lsn_proc", "lsn_commit") if offset.get(key) is not None]
    return max(found, default=None)
