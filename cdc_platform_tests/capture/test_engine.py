"""Debezium's real engine: what ends it is said, not swallowed. Each test is a process: a JVM starts once."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e
SCRIPT = """
import sys, threading
from pathlib import Path
from cdc_platform.capture.engine import run_engine
from cdc_platform.capture.settings import connector_properties
from cdc_platform.registry.model import Table
folder, change = Path(sys.argv[1]), dict(a.split("=", 1) for a in sys.argv[2:])
table = Table.model_validate({"source": "db.public.orders", "key": ["id"], "owners": ["team:t"]})
properties = connector_properties(name="cdc_t", url="postgresql://u:secret@127.0.0.1:1/db", tables=[table],
                                  offsets=folder / "o", signals=folder / "s") | change
try:
    run_engine(properties, lambda records, schema_of: None, memory_mb=256, stopping=threading.Event())
except Exception as error:
    print(type(error).__name__, "|", error)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "decimal.handling.mode=silly",
            ["ConfigError", "'decimal.handling.mode' value is invalid", "Correct the option"],
        ),
        ("connector.class=io.debezium.Nothing", ["ConfigError", "io.debezium.Nothing"]),
        ("database.hostname=127.0.0.1", ["Error", "Debezium connector cdc_t", "127.0.0.1:1"]),
    ],
)
def test_an_engine_that_can_not_run_raises_with_its_reason(tmp_path: object, change: str, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), change], capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    assert all(part in last for part in said), done.stdout[-2000:] + done.stderr[-2000:]
    assert "secret" not in last
