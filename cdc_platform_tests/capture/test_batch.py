"""Which log a record goes to, when it is durable, and where a load begins and ends."""

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.capture.batch import Router, acknowledgeable
from cdc_platform.capture.schemas import RecordColumn, RecordSchema, TableColumns
from cdc_platform.capture.settings import NOTIFICATIONS, connector_properties
from cdc_platform.changelog.cuts import Cuts
from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END, SCHEMA
from cdc_platform.errors import UnavailableError
from cdc_platform.registry.model import Table
from cdc_platform.source.columns import Catalog, CatalogColumn, Declared
from cdc_platform.source.types import SourceColumn

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


@dataclass
class FakeSchema:
    """The schema instance of a record; its columns are integers."""

    names: tuple[str, ...] = ("id", "status")

    def is_same(self, other: RecordSchema) -> bool:
        return self is other

    def columns(self) -> tuple[RecordColumn, ...]:
        return tuple(RecordColumn(n, "INT4") for n in self.names)


def catalog(*names: str, changed_by: int = 3) -> Catalog:
    """Columns numbered from 1, last changed by a transaction that precedes every writer in these tests."""
    return Catalog(
        tuple(
            CatalogColumn(SourceColumn(n, "integer", n == "id", number=i), Declared("int4", -1), changed_by)
            for i, n in enumerate(names, 1)
        ),
        storage=77,
    )


SCHEMAS = FakeSchema()


class Routed:
    """A router over fakes. Each table has the columns id and status, and its log says so."""

    def __init__(self, folder: Path, unloaded: set[str] = frozenset(), **tables: str) -> None:  # type: ignore[assignment]
        declared = tables or {"orders": "orders", "items": "items"}
        self.writers = {name: FakeWriter() for name in declared}
        self.requested: list[list[str]] = []
        self.catalogs = dict.fromkeys(declared, catalog("id", "status"))
        self.looked_up: list[str] = []
        self.router = Router(
            prefix=PREFIX,
            tables={name: table(source) for name, source in declared.items()},
            look_up=self.look_up,
            known={name: TableColumns.of_catalog(c) for name, c in self.catalogs.items()},
            writers=self.writers,
            unloaded=set(unloaded),
            request_load=self.requested.append,
            cuts=Cuts(folder / "cuts.json"),
        )

    def look_up(self, name: str) -> Catalog:
        self.looked_up.append(name)
        return self.catalogs[name]

    def write(self, *records: tuple[str, str | None], schemas: list[FakeSchema] | None = None) -> None:
        self.router.write(records, lambda i: schemas[i] if schemas else SCHEMAS)

    def ops(self, name: str) -> list[str]:
        return [json.loads(r).get("op") for r in self.writers[name].records]

    def columns(self, name: str, offset: int) -> list[str]:
        return [c["name"] for c in json.loads(self.writers[name].records[offset])["columns"]]


def change(source: str, op: str = "u") -> str:
    return json.dumps({"op": op, "source": {"schema": "public", "table": source, "txId": 900}})


def notified(kind: str, **data: Any) -> tuple[str, str]:
    value = {"aggregate_type": "Initial Snapshot", "type": kind, "additional_data": data, "timestamp": 5}
    return NOTIFICATIONS, json.dumps(value)


def message(prefix: str, content: str) -> tuple[str, str]:
    encoded = base64.b64encode(content.encode()).decode()
    return f"{PREFIX}.message", json.dumps({"op": "m", "message": {"prefix": prefix, "content": encoded}})


def test_each_change_goes_to_its_tables_log_as_it_came_and_is_durable_when_write_returns(tmp_path: Path) -> None:
    routed = Routed(tmp_path)
    value = change("orders")
    routed.write((f"{PREFIX}.public.orders", value), (f"{PREFIX}.public.items", change("items")))
    assert routed.writers["orders"].records == [value.encode()]
    assert {n: w.synced for n, w in routed.writers.items()} == {"orders": 1, "items": 1}
    assert routed.router.records == {"change": 2}


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


def test_every_kind_of_record_has_a_meaning_and_is_counted(tmp_path: Path) -> None:
    routed = Routed(tmp_path)
    routed.write(
        (f"__debezium-heartbeat.{PREFIX}", "{}"),
        (f"{PREFIX}.transaction", "{}"),
        (f"{PREFIX}.public.orders", None),  # A tombstone.
        (f"{PREFIX}.public.nobody_declared", change("nobody_declared")),
        ("schema-changes", "{}"),
        message("another.application", "{}"),
        message("cdc_platform.cut", "one"),
        notified("STARTED"),
        (f"{PREFIX}.public.orders", change("orders")),
    )
    assert routed.router.records == {
        "heartbeat": 1, "transaction": 1, "tombstone": 1, "unknown": 2, "message": 1, "cut": 1, "notification": 1,
        "change": 1,
    }  # fmt: skip
    assert routed.ops("orders") == ["u"]
    assert routed.ops("items") == []


def replay(table: str, record: Any) -> tuple[str, str]:
    return message("cdc_platform.replay", json.dumps({"table": table, "record": record}))


def test_a_replayed_record_is_one_line_of_its_tables_log_at_that_place(tmp_path: Path) -> None:
    routed, topic = Routed(tmp_path), f"{PREFIX}.public.orders"
    record = {"op": "c", "after": {"id": 7, "status": "é\n"}}
    routed.write((topic, change("orders")), replay("orders", record), (topic, change("orders", "d")))
    assert routed.ops("orders") == ["u", "c", "d"]
    assert json.loads(routed.writers["orders"].records[1]) == record
    assert b"\n" not in routed.writers["orders"].records[1]
    assert (routed.writers["orders"].synced, routed.router.records["replay"]) == (3, 1)


@pytest.mark.parametrize(
    "asked",
    [
        replay("nobody", {"op": "c"}),
        replay("orders", "no record"),
        replay("orders", {"op": "load_end"}),
        replay("orders", {"op": "schema", "columns": []}),
        message("cdc_platform.replay", "not json"),
        message("cdc_platform.replay", "[]"),
    ],
)
def test_what_is_no_change_of_a_declared_table_is_not_replayed(tmp_path: Path, asked: tuple[str, str]) -> None:
    routed = Routed(tmp_path)
    routed.write(asked)
    assert [w.records for w in routed.writers.values()] == [[], []]
    assert routed.router.records == {"replay_refused": 1}


def test_a_marker_stands_exactly_before_the_first_record_with_other_columns(tmp_path: Path) -> None:
    routed, topic = Routed(tmp_path), f"{PREFIX}.public.orders"
    items = (f"{PREFIX}.public.items", change("items"))
    old, new = SCHEMAS, FakeSchema(("id", "status", "note"))
    routed.catalogs["orders"] = catalog("id", "status", "note")
    records = [(topic, change("orders")) for _ in range(7)]
    routed.write(*records[:4], items, *records[4:], schemas=[old] * 3 + [new] + [old] + [new] * 3)
    assert routed.ops("orders") == ["u", "u", "u", SCHEMA, "u", "u", "u", "u"]
    assert routed.columns("orders", 3) == ["id", "status", "note"]
    assert routed.ops("items") == ["u"]
    routed.write(*records, schemas=[new] * 7)
    assert routed.ops("orders").count(SCHEMA) == 1
    assert sorted(routed.looked_up) == ["items", "orders", "orders"]  # Once for each instance.


def test_a_table_that_is_described_anew_without_a_change_gets_no_marker(tmp_path: Path) -> None:
    routed, topic = Routed(tmp_path), f"{PREFIX}.public.orders"
    routed.write((topic, change("orders")), (topic, change("orders")), schemas=[FakeSchema(), FakeSchema()])
    assert routed.ops("orders") == ["u", "u"]
    assert routed.looked_up == ["orders", "orders"]


def test_columns_that_change_and_change_back_within_a_batch_are_two_markers(tmp_path: Path) -> None:
    routed, topic = Routed(tmp_path), f"{PREFIX}.public.orders"
    routed.catalogs["orders"] = catalog("id", "status", "note")
    three = [FakeSchema(), FakeSchema(("id", "status", "note")), FakeSchema()]
    routed.write(*[(topic, change("orders"))] * 3, schemas=three)
    assert routed.ops("orders") == ["u", SCHEMA, "u", SCHEMA, "u"]


def test_a_loads_columns_are_those_of_its_beginning(tmp_path: Path) -> None:
    routed = Routed(tmp_path)
    routed.catalogs["orders"] = catalog("id", "fresh")
    routed.write(notified("IN_PROGRESS", current_collection_in_progress="public.orders"))
    assert routed.columns("orders", 0) == ["id", "fresh"]
    routed.write((f"{PREFIX}.public.orders", change("orders", "r")), schemas=[FakeSchema(("id", "fresh"))])
    assert routed.ops("orders") == [LOAD_BEGIN, "r"]


def test_two_tables_whose_topics_debezium_makes_one_are_told_apart_by_their_source(tmp_path: Path) -> None:
    routed = Routed(tmp_path, spaced="a b", dashed="a?b")
    routed.write((f"{PREFIX}.public.a_b", change("a?b", "c")), (f"{PREFIX}.public.a_b", change("a b", "d")))
    assert (routed.ops("spaced"), routed.ops("dashed")) == (["d"], ["c"])


def test_markers_stand_around_a_load_and_carry_the_columns(tmp_path: Path) -> None:
    routed = Routed(tmp_path, unloaded={"orders", "items"})
    topic = f"{PREFIX}.public.orders"
    routed.write(notified("STARTED"), notified("IN_PROGRESS", current_collection_in_progress="public.orders"))
    routed.write((topic, change("orders", "r")))
    routed.write((topic, change("orders", "r")), notified("COMPLETED"), (topic, change("orders", "c")))
    assert routed.ops("orders") == [LOAD_BEGIN, "r", "r", LOAD_END, "c"]
    first = json.loads(routed.writers["orders"].records[0])
    assert first["columns"][0] == {
        "name": "id", "type": "integer", "required": True, "doc": "", "number": 1, "filled": False,
    }  # fmt: skip
    assert (first["declared"][0], first["storage"]) == (["int4", -1], 77)
    assert routed.writers["orders"].synced == 5
    assert routed.requested == [[r"public\.items"]]  # Not in that load, and never loaded: asked for.
    routed.write(notified("COMPLETED"))
    assert len(routed.requested) == 1, "a load that brings nothing is asked for once, not for ever"


def test_a_restart_asks_for_the_tables_whose_load_is_not_whole_and_no_other(tmp_path: Path) -> None:
    for unloaded, asked in (({"items"}, [[r"public\.items"]]), (set[str](), [])):
        routed = Routed(tmp_path, unloaded=unloaded)
        routed.write(notified("SKIPPED"))
        assert routed.requested == asked


def test_a_table_is_asked_for_by_a_pattern_that_means_it_alone(tmp_path: Path) -> None:
    routed = Routed(tmp_path, unloaded={"odd"}, odd="odd+Name (x)")
    routed.write(notified("SKIPPED"))
    [[pattern]] = routed.requested
    assert re.fullmatch(pattern, "public.odd+Name (x)")
    assert not re.fullmatch(pattern, "public_oddd+Name (x)")


def test_a_load_that_debezium_broke_off_ends_capture_and_is_not_called_whole(tmp_path: Path) -> None:
    routed = Routed(tmp_path, unloaded={"orders"})
    routed.write(notified("IN_PROGRESS", current_collection_in_progress="public.orders"))
    with pytest.raises(UnavailableError, match="broke off the initial load of orders"):
        routed.write(notified("ABORTED"))
    assert routed.ops("orders") == [LOAD_BEGIN]


def test_a_cut_is_noted_with_the_ends_of_the_logs_before_it_once_they_are_durable(tmp_path: Path) -> None:
    routed, cuts = Routed(tmp_path), Cuts(tmp_path / "cuts.json")
    topic = f"{PREFIX}.public.orders"
    theirs, ours = message("theirs", "x"), message("cdc_platform.cut", "one")
    routed.write((topic, change("orders")), theirs, (topic, change("orders")), ours, (topic, change("orders")))
    assert cuts.find(["x", "one"], "orders") == 2
    assert cuts.find(["one"], "items") == 0
    assert cuts.find(["another"], "orders") is None
    routed.write(message("cdc_platform.cut", "two"))
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
