"""The mark of a failed proof: what it stops, what it says, what it keeps."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.lake.catalog import Lake
from cdc_platform.lake.snapshot import Ref
from cdc_platform.maintenance.due import due
from cdc_platform.maintenance.halted import PROPERTY, Halt, halted
from cdc_platform.maintenance.policy import limits
from cdc_platform.maintenance.protection import Retention, keeping
from cdc_platform.maintenance.runs import Operation
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform_tests.builders import history
from cdc_platform_tests.maintenance.test_policy import healthy

HALT = Halt(7, 6, "rewrite_data_files", 1_764_543_021_000, "rewrite_data_files changed the number of rows from 2 to 1")
TABLE = "landing.t"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A catalog with one empty table."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    (tmp_path / "warehouse").mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    lake = Lake("lake", properties)
    lake.catalog.create_namespace("landing")
    lake.catalog.create_table(TABLE, Schema(NestedField(1, "id", LongType())), properties=HALT.property())
    return lake


@pytest.mark.parametrize("operation", get_args(Operation))
def test_no_operation_is_due_on_a_halted_table_and_the_reason_is_what_to_do(lake: Lake, operation: Operation) -> None:
    found = due(lake, TABLE, operation, Maintenance(), now_ms=HALT.at_ms).decision
    assert not found.due
    assert found.reason.startswith("maintenance is halted since snapshot 7: rewrite_data_files changed the number of")
    assert "set_current_snapshot(table => 'landing.t', ref => 'keep_before_7')" in found.reason
    assert "`ALTER TABLE lake.landing.t UNSET TBLPROPERTIES ('cdc.maintenance.halted')`" in found.reason
    assert "`ALTER TABLE lake.landing.t DROP TAG keep_before_7`" in found.reason


def test_a_halted_table_is_beyond_its_limits_though_all_its_figures_are_good() -> None:
    mark = halted(replace(history(TABLE, ("append", {})), properties=HALT.property()))
    [found] = limits(healthy(), Maintenance(), mark=mark)
    assert (found.group, found.figure, found.measured > found.limit) == ("files", "halted", True)
    assert "keep_before_7" in found.action
    assert limits(healthy(), Maintenance(), mark=None) == ()


@given(st.text() | st.just("[" * 60_000) | st.just('{"snapshot_id": "7"}'))
def test_a_mark_that_can_not_be_read_halts_all_the_same(text: str) -> None:
    found = halted(replace(history(TABLE), properties={PROPERTY: text}))
    assert found is not None
    assert "can't be read" in found.what
    assert "UNSET TBLPROPERTIES" in found.action()


def test_a_mark_says_what_was_written_into_it_and_a_table_without_one_is_not_halted() -> None:
    found = halted(replace(history(TABLE), properties=HALT.property()))
    assert found is not None
    assert found.halt == HALT
    assert halted(history(TABLE)) is None


@pytest.mark.parametrize("declared", [None, 1])
def test_the_snapshot_to_go_back_to_stays_whatever_refs_may_live_by_default_or_declare(declared: int | None) -> None:
    """`keep_refs` may name others alone; the table's own default for refs may be a second."""
    tag = Ref("keep_before_3", 2, branch=False, max_ref_age_ms=declared)
    made = replace(
        history(TABLE, *[("append", {})] * 5),
        refs={tag.name: 2},
        retention=(tag,),
        properties={"history.expire.max-ref-age-ms": "1"},
    )
    kept = keeping(made, Retention(0, 1, keep_refs=("month_*",)), now_ms=1 << 50)
    assert kept.ids == {2, 5}
    assert (kept.refs_gone, [ref.name for ref in kept.refs_renewed]) == ((), ["keep_before_3"])
