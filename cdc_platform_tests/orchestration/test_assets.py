from pathlib import Path

import dagster as dg
import pytest

from cdc_platform.definitions import build_defs
from cdc_platform.errors import (
    CdcError,
    CommitUnknownError,
    ConfigError,
    ConflictError,
    InvariantError,
    LimitError,
    UnavailableError,
)
from cdc_platform.orchestration.failures import as_failure
from cdc_platform_tests.orchestration.fakes import FakeTables, deployment

REWRITE = dg.AssetKey(["maintenance", "rewrite_data_files", "landing", "orders"])


def run(job: str, tables: FakeTables, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    defs = build_defs(deployment("orders"), resources={"tables": tables})
    return defs.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False)


def test_a_merge_records_what_it_did() -> None:
    tables, instance = FakeTables(), dg.DagsterInstance.ephemeral()
    for _ in range(3):
        tables.commit("orders")
    done = run("merge_curated", tables, instance)
    [event] = done.asset_materializations_for_node("curated__orders")
    schema = event.metadata["dagster/column_schema"].value
    assert isinstance(schema, dg.TableSchema) and [c.name for c in schema.columns] == ["order_id", "status"]
    assert {k: v.value for k, v in event.metadata.items() if k != "dagster/column_schema"} == {
        "committed": True,
        "rows_inserted": 3,
        "rows_updated": 2,
        "rows_deleted": 1,
        "landing_commits_merged": 3,
        "took_s": 0.5,
        "upstream_snapshot_id": "3",
        "dagster/row_count": 7,
        "snapshot_id": "1001",
        "watermark": 1,
        "data_files": 0,
    }
    head = tables.curated("orders")
    assert head is not None and head.head is not None
    assert head.head.summary["cdc.run-id"] == done.run_id


def test_a_rewrite_is_an_observation_of_landing_and_never_a_materialization() -> None:
    tables, instance = FakeTables(), dg.DagsterInstance.ephemeral()
    tables.commit("orders")
    assert run("rewrite_data_files", tables, instance).success
    landing = dg.AssetKey(["landing", "orders"])
    assert instance.get_latest_materialization_event(landing) is None
    [record] = instance.fetch_observations(landing, limit=10).records
    event = instance.get_latest_materialization_event(REWRITE)
    assert record.asset_observation is not None and event is not None and event.asset_materialization is not None
    assert record.asset_observation.metadata == event.asset_materialization.metadata
    metadata = {k: v.value for k, v in event.asset_materialization.metadata.items()}
    assert {k: metadata[k] for k in ("outcome", "snapshot_ids", "took_s", "conflicts", "lost_s")} == {
        "outcome": "11 became none",
        "snapshot_ids": "2",
        "took_s": 2.0,
        "conflicts": 0,
        "lost_s": 0.0,
    }
    both = ("data_files", "delete_files", "deletes", "dangling_delete_files", "read_s", "files_opened", "rows")
    assert {k: (metadata[f"{k}_before"], metadata[f"{k}_after"]) for k in both} == {
        "data_files": (12, 1),
        "delete_files": (11, 0),
        "deletes": (400, 0),
        "dangling_delete_files": (1, 0),
        "read_s": (1.5, 0.25),
        "files_opened": (23, 1),
        "rows": (7, 7),
    }
    assert "| read_s | 1.5 | 0.25 |" in str(metadata["bought"])
    assert "12 data files" in str(metadata["plan"])


@pytest.mark.parametrize(
    ("operation", "config", "materialized"),
    [
        ("expire_snapshots", {}, True),
        ("expire_snapshots", {"dry_run": True}, False),
        ("remove_orphan_files", {}, False),
        ("remove_orphan_files", {"dry_run": False}, True),
    ],
)
def test_a_dry_run_shows_its_plan_and_materializes_nothing(
    operation: str, config: dict[str, bool], materialized: bool
) -> None:
    tables, instance = FakeTables(), dg.DagsterInstance.ephemeral()
    tables.commit("orders")
    key = dg.AssetKey(["maintenance", operation, "landing", "orders"])
    defs = build_defs(deployment("orders"), resources={"tables": tables})
    ops = {"__".join(key.path): {"config": config}}
    job = defs.resolve_job_def(operation).get_subset(asset_selection={key})
    assert job.execute_in_process(instance=instance, run_config={"ops": ops}).success
    assert (instance.get_latest_materialization_event(key) is not None) == materialized
    [record] = instance.fetch_observations(dg.AssetKey(["landing", "orders"]), limit=10).records
    assert record.asset_observation is not None
    shown = record.asset_observation.metadata
    assert "11 delete files with 400 deletes" in str(shown["plan"].value)
    assert ("dry run" in str(shown["outcome"].value)) != materialized
    assert len(tables.snapshots["orders"]) == (2 if materialized else 1)


def test_a_wrong_declaration_fails_a_run_at_once_with_its_remedy() -> None:
    tables = FakeTables(broken={"orders": ConfigError("no such column", where="tables.yaml", action="Correct it")})
    done = run("merge_curated", tables, dg.DagsterInstance.ephemeral())
    assert not done.success
    [failure] = [e for e in done.all_events if e.is_step_failure]
    assert failure.step_failure_data.user_failure_data is not None
    metadata = failure.step_failure_data.user_failure_data.metadata
    assert {k: v.value for k, v in metadata.items()} == {
        "where": "tables.yaml",
        "what": "no such column",
        "action": "Correct it",
    }
    assert not [e for e in done.all_events if e.is_step_up_for_retry]


@pytest.mark.parametrize(
    ("kind", "retried"),
    [
        (ConfigError, False),
        (InvariantError, False),
        (LimitError, False),
        (UnavailableError, True),
        (ConflictError, True),
        (CommitUnknownError, True),
    ],
)
def test_what_may_succeed_later_is_retried_and_the_rest_is_not(kind: type[CdcError], retried: bool) -> None:
    with pytest.raises(dg.Failure) as caught, as_failure():
        raise kind("what", where="where", action="Do this")
    assert caught.value.allow_retries == retried
    assert caught.value.description == "where: what. Do this."


def test_a_mistake_of_ours_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), as_failure():
        1 / 0  # noqa: B018


def test_the_projects_own_tables_have_a_whole_catalog_entry() -> None:
    from cdc_platform.deployment import Deployment

    project = Path(__file__).parents[2]
    defs = build_defs(Deployment.load(project))
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert {"source/public/orders", "changelog/orders", "landing/orders", "curated/orders"} <= set(specs)
    for spec in specs.values():
        assert spec.owners and spec.kinds and spec.description and spec.group_name != "default", spec.key
        assert spec.metadata.get("dagster/table_name") or spec.key.path[0] == "platform"
    maintenance = {key: specs.pop(key) for key in [*specs] if key.startswith("maintenance/")}
    assert {key.removesuffix("/orders") for key in maintenance if key.endswith("/orders")} == {
        "maintenance/rewrite_data_files/landing",
        "maintenance/rewrite_data_files/curated",
        "maintenance/rewrite_position_delete_files/landing",  # On v3 it does nothing, so there is none on curated.
        "maintenance/expire_snapshots/landing",
        "maintenance/expire_snapshots/curated",
        "maintenance/rewrite_manifests/landing",
        "maintenance/rewrite_manifests/curated",
        "maintenance/remove_orphan_files/landing",
        "maintenance/remove_orphan_files/curated",
    }
    for key, spec in maintenance.items():
        assert [d.asset_key.to_user_string() for d in spec.deps] == ["/".join(key.split("/")[2:])]
    assert {key: [d.asset_key.to_user_string() for d in specs[key].deps] for key in specs if "items" not in key} == {
        "source/public/orders": [],
        "changelog/orders": ["source/public/orders"],
        "landing/orders": ["changelog/orders"],
        "dead_letters/orders": ["changelog/orders"],
        "curated/orders": ["landing/orders"],
        "platform/automation": [],
    }
    assert specs["curated/orders"].code_version == "order_id | status, customer_id, total"


def test_each_table_has_exactly_one_writer_pool() -> None:
    defs = build_defs(deployment("orders", "items"))
    pools: dict[str, set[str | None]] = {}
    for definition in defs.assets or ():
        if isinstance(definition, dg.AssetsDefinition):
            for spec in definition.specs:
                pools.setdefault(str(spec.metadata["dagster/table_name"]), set()).add(definition.op.pool)
    assert pools == {
        f"{stage}.{name}": {f"{stage}_{name}"} for stage in ("curated", "landing") for name in ("orders", "items")
    }


def test_a_comparison_takes_the_pool_of_its_source() -> None:
    defs = build_defs(deployment("orders"))
    pools = {op.name: op.pool for check in defs.asset_checks or () for op in [check.node_def]}
    assert pools["landing_orders_converged"] == pools["curated_orders_converged"] == "source_shop"
