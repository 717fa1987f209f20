"""Which log a record goes to, when it is durable, and where a load begins and ends."""

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.capture.batch import Router, acknowledgeable
from cdc_platform.capture.settings import NOTIFICATIONS, connector_properties
from cdc_platform.changelog.cuts import Cuts
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END
from cdc_platform.errors import UnavailableError
from cdc_platform.registry.model import Table
from cdc_platform_tests.builders import ORDER_COLUMNS

PREFIX = "cdc_shop_db"


@dataclass
class FakeWriter:
    """Remembers what was written, and what of it was synced."""

    records: list[bytes] = field(default_factory=list)
    synced: int = 0

    def append(self, records: list[bytes]) -> None:
        self.records += records

    def append_marker(self, record: bytes) -> None:
        self.records.append(record)

    @property
    def end(self) -> int:
        return len(self.records)

    def sync(self) -> None:
        self.synced = len(self.records)


def table(source: str) -> Table:
    return Table.model_validate({"source": f"db.public.{source}", "key": ["id"], "owners": ["team:t"]})


class Routed:
    def __init__(self, folder: Path, unloaded: set[str] = frozenset(), **tables: str) -> None:  # type: ignore[assignment]
        declared = tables or {"orders": "orders", "items": "items"}
        self.writers = {name: FakeWriter() for name in declared}
        self.requested: list[list[str]] = []
        self.router = Router(
            prefix=PREFIX,
            tables={name: table(source) for name, source in declared.items()},
            columns=dict.fromkeys(declared, ORDER_COLUMNS),
            writers=self.writers,
            unloaded=set(unloaded),
            request_load=self.requested.append,
            cuts=Cuts(folder / "cuts.json"),
        )

    def ops(self, name: str) -> list[str]:
        return [json.loads(r).get("op") for r in self.writers[name].records]


def change(source: str, op: str = "u") -> str:
    return json.dumps({"op": op, "source": {"schema": "public", "table": source}})


def notified(kind: str, **data: Any) -> tuple[str, str]:
    value = {"aggregate_type": "Initial Snapshot", "type": kind, "additional_data": data, "timestamp": 5}
    return NOTIFICATIONS, json.dumps(value)


def test_each_change_goes_to_its_tables_log_as_it_came_and_is_durable_when_write_returns(tmp_path: Path) -> None:
    routed = Routed(tmp_path)
    value = change("orders")
    routed.router.write([(f"{PREFIX}.public.orders", value), (f"{PREFIX}.public.items", change("items"))])
    assert routed.writers["orders"].records == [value.encode()]
    assert {n: w.synced for n, w in routed.writers.items()} == {"orders": 1, "items": 1}
    assert routed.router.events == 2


def test_nothing_is_remembered_inside_a_group_of_one_lsn() -> None:
    """Debezium would go on after the LSN, and the rest of the group would be lost."""

    def of(lsn: int, op: str = "c") -> tuple[str, str]:
        return f"{PREFIX}.public.orders", json.dumps({"op": op, "source": {"lsn": lsn}, "after": {"lsn": 9}})

    end, heartbeat = (f"{PREFIX}.transaction", '{"status": "END"}'), ("__debezium-heartbeat", '{"ts_ms": 1}')
    assert acknowledgeable([of(5), of(6), of(7), of(7)]) == 1
    assert acknowledgeable([of(7), of(7)]) is None
    assert acknowledgeable([of(7), of(7), end]) == 2
    assert acknowledgeable([of(7), heartbeat, of(8)]) == 1
    assert acknowledgeable([of(5, "r"), of(5, "r")]) is None
    assert acknowledgeable([of(5, "r"), heartbeat]) == 1
    assert acknowledgeable([]) is None


@pytest.mark.parametrize("topic", ["__debezium-heartbeat.cdc_shop_db", f"{PREFIX}.transaction"])
def test_what_is_of_no_table_is_passed_over(tmp_path: Path, topic: str) -> None:
    routed = Routed(tmp_path)
    routed.router.write([(topic, "{}"), (f"{PREFIX}.public.orders", None)])
    assert [w.records for w in routed.writers.values()] == [[], []]


def test_two_tables_whose_topics_debezium_makes_one_are_told_apart_by_their_source(tmp_path: Path) -> None:
    routed = Routed(tmp_path, spaced="a b", dashed="a?b")
    routed.router.write([(f"{PREFIX}.public.a_b", change("a?b", "c")), (f"{PREFIX}.public.a_b", change("a b", "d"))])
    assert (routed.ops("spaced"), routed.ops("dashed")) == (["d"], ["c"])


def test_markers_stand_around_a_load_and_carry_the_columns(tmp_path: Path) -> None:
    routed = Routed(tmp_path, unloaded={"orders", "items"})
    topic = f"{PREFIX}.public.orders"
    routed.router.write([notified("STARTED"), notified("IN_PROGRESS", current_collection_in_progress="public.orders")])
    routed.router.write([(topic, change("orders", "r"))])
    routed.router.write([(topic, change("orders", "r")), notified("COMPLETED"), (topic, change("orders", "c"))])
    assert routed.ops("orders") == [LOAD_BEGIN, "r", "r", LOAD_END, "c"]
    first = json.loads(routed.writers["orders"].records[0])
    assert first["columns"][0] == {"name": "id", "type": "long", "required": True, "doc": ""}
    assert routed.writers["orders"].synced == 5
    assert routed.requested == [[r"public\.items"]]  # Not in that load, and never loaded: asked for.
    routed.router.write([notified("COMPLETED")])
    assert len(routed.requested) == 1, "a load that brings nothing is asked for once, not for ever"


def test_a_restart_asks_for_the_tables_whose_load_is_not_whole_and_no_other(tmp_path: Path) -> None:
    for unloaded, asked in (({"items"}, [[r"public\.items"]]), (set[str](), [])):
        routed = Routed(tmp_path, unloaded=unloaded)
        routed.router.write([notified("SKIPPED")])
        assert routed.requested == asked


def test_a_table_is_asked_for_by_a_pattern_that_means_it_alone(tmp_path: Path) -> None:
    routed = Routed(tmp_path, unloaded={"odd"}, odd="odd+Name (x)")
    routed.router.write([notified("SKIPPED")])
    [[pattern]] = routed.requested
    assert re.fullmatch(pattern, "public.odd+Name (x)")
    assert not re.fullmatch(pattern, "public_oddd+Name (x)")


def test_a_load_that_debezium_broke_off_ends_capture_and_is_not_called_whole(tmp_path: Path) -> None:
    routed = Routed(tmp_path, unloaded={"orders"})
    routed.router.write([notified("IN_PROGRESS", current_collection_in_progress="public.orders")])
    with pytest.raises(UnavailableError, match="broke off the initial load of orders"):
        routed.router.write([notified("ABORTED")])
    assert routed.ops("orders") == [LOAD_BEGIN]


def message(prefix: str, content: str) -> tuple[str, str]:
    encoded = base64.b64encode(content.encode()).decode()
    return f"{PREFIX}.message", json.dumps({"op": "m", "message": {"prefix": prefix, "content": encoded}})


def test_a_cut_is_noted_with_the_ends_of_the_logs_before_it_once_they_are_durable(tmp_path: Path) -> None:
    routed, cuts = Routed(tmp_path), Cuts(tmp_path / "cuts.json")
    topic = f"{PREFIX}.public.orders"
    theirs, ours = message("theirs", "x"), message("cdc_platform.cut", "one")
    routed.router.write([(topic, change("orders")), theirs, (topic, change("orders")), ours, (topic, change("orders"))])
    assert cuts.find(["x", "one"], "orders") == 2
    assert cuts.find(["one"], "items") == 0
    assert cuts.find(["another"], "orders") is None
    routed.router.write([message("cdc_platform.cut", "two")])
    assert cuts.find(["one", "two"], "orders") == 2  # The first of the asked that was met.
    assert cuts.find(["two"], "orders") == 3


def test_the_settings_name_one_deployment_and_take_nothing_for_granted(tmp_path: Path) -> None:
    found = connector_properties(
        name="cdc_shop_db",
        url="postgresql+psycopg://me:p%40ss@db.host:6432/shop",
        tables=[table("orders"), table("Weird+Table")],
        offsets=tmp_path / "o",
        signals=tmp_path / "s",
    )
    assert {found[k] for k in ("name", "slot.name", "publication.name", "topic.prefix")} == {"cdc_shop_db"}
    assert (found["database.password"], found["database.port"]) == ("p@ss", "6432")
    assert found["table.include.list"] == r"public\.Weird\+Table,public\.orders"
    assert found["publication.autocreate.mode"] == "disabled"
