"""What must be true of the tables, as asset checks.

Belongs here: checks, and how a verdict reads in the catalog. Does not: reaching the verdict (`convergence`).
A check is named after the truth that it asserts, one truth for each, so a divergence says what diverged; all
checks of a stage share one reading. *Unknown* (a side gave no answer, or the stage was late) is a warning:
only a stage that was read at the cut and differs is an error.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from cdc_platform.maintenance.policy import HALTED, Group
from cdc_platform.operations import Stage
from cdc_platform.orchestration.assets import (
    curated_key,
    curated_metadata,
    landing_key,
    letters_metadata,
    markdown,
    source_key,
)
from cdc_platform.orchestration.attempts import Exhausted
from cdc_platform.orchestration.automation import AUTOMATED, MERGE, Operation, situation
from cdc_platform.orchestration.failures import as_failure
from cdc_platform.orchestration.maintenance import health_metadata, stage_key
from cdc_platform.orchestration.resources import Tables
from cdc_platform.registry.model import Registry, Table

if TYPE_CHECKING:
    from cdc_platform.convergence.converge import Verdict
    from cdc_platform.maintenance.due import Examined

_DIFFERENCES_SHOWN_MAX = 20

# Check: the measures it speaks for, and what it asserts.
_MEASURES: dict[str, tuple[Callable[[str], bool], str]] = {
    "row_count_matches": (lambda m: m == "rows", "As many rows as the source, at one cut."),
    "key_sums_match": (
        lambda m: m.startswith("sum("),
        "The sums of the declared columns equal the source's, at one cut.",
    ),
    "distribution_matches": (
        lambda m: m.startswith("value="),
        "As many rows for each value of the declared column as the source, at one cut.",
    ),
}
AUTOMATION_SUCCEEDS = "automation_succeeds"
DEAD_LETTERS_ARE_CLOSED = "dead_letters_are_closed"
SLOT_LAG_IS_BOUNDED = "slot_lag_is_bounded"
# Check: the group of limits that it speaks for, and what it asserts.
_HEALTH: dict[str, tuple[Group, str]] = {
    "files_are_healthy": (
        "files",
        "Delete files, deletes and small files are near what starts a rewrite, not far beyond.",
    ),
    "history_is_bounded": (
        "history",
        "Snapshots, metadata and what only history holds are not far beyond what expiry leaves.",
    ),
}


def build_checks(registry: Registry) -> list[dg.AssetChecksDefinition]:
    """Every check of every declared table."""
    found: list[dg.AssetChecksDefinition] = []
    for name, table in registry.tables.items():
        found += [
            _convergence(name, table, "landing"),
            _convergence(name, table, "curated"),
            _health(name, "landing"),
            _health(name, "curated"),
            _dead_letters(name),
            _automation(MERGE, name, table, registry.automation.attempts_max),
            *(
                _automation(operation, name, table, registry.automation.attempts_max)
                for operations in AUTOMATED.values()
                for operation in operations
            ),
            _slot_lag(name, table, registry.sources[table.source_name].slot_lag_max_mb),
        ]
    return found


def _convergence(name: str, table: Table, stage: Stage) -> dg.AssetChecksDefinition:
    key = landing_key(name) if stage == "landing" else curated_key(name)
    declared = {
        "row_count_matches": True,
        "key_sums_match": bool(table.convergence.sums),
        "distribution_matches": table.convergence.distribution is not None,
    }
    specs = [
        dg.AssetCheckSpec(check, asset=key, description=_MEASURES[check][1])
        for check, wanted in declared.items()
        if wanted
    ]

    @dg.multi_asset_check(
        name=f"{stage}_{name}_converged",
        specs=specs,
        can_subset=True,
        description=f"Compares `{stage}.{name}` with the source at one cut, once the stage has reached it.",
        pool=f"source_{table.source_name}",
    )
    def converged(
        context: dg.AssetCheckExecutionContext, tables: dg.ResourceParam[Tables]
    ) -> Iterator[dg.AssetCheckResult]:
        verdict = tables.converge(name, stage)
        selected = sorted(context.selected_asset_check_keys, key=lambda k: k.name)
        # Results count for the newest materialization: confirming would void those of checks not in this run.
        if stage == "curated" and verdict.outcome == "converged" and len(selected) == len(specs):
            _confirm(context, tables, name, verdict)
        for check in selected:
            yield check_result(verdict, check)

    return converged


def check_result(verdict: "Verdict", check: dg.AssetCheckKey) -> dg.AssetCheckResult:
    """What a verdict means for the one truth that `check` asserts."""
    speaks_for, _ = _MEASURES[check.name]
    differing = [d for d in verdict.differences if speaks_for(d.measure)]
    outcome, reason = verdict.outcome, verdict.reason
    if outcome == "diverged" and differing:
        reason = f"{len(differing)} figures differ"
    elif outcome == "diverged":
        outcome, reason = "converged", "this figure is equal; another check of the stage shows what differs"
    metadata: dict[str, Any] = {
        "outcome": outcome,
        "reason": reason,
        "seconds_to_converge": round(verdict.took_s, 3),
    }
    if verdict.cut is not None:
        metadata["cut_lsn"] = _lsn(verdict.cut.lsn)
    if verdict.reading is not None:
        metadata |= {"snapshot_id": str(verdict.reading.snapshot_id), "rows": verdict.reading.found.rows}
    if differing:
        metadata["differing_figures"] = len(differing)
        metadata["differences"] = dg.TableMetadataValue(
            records=[
                dg.TableRecord({"measure": d.measure, "expected": d.expected, "found": d.found})
                for d in differing[:_DIFFERENCES_SHOWN_MAX]
            ],
            schema=dg.TableSchema(
                columns=[
                    dg.TableColumn("measure", "string"),
                    dg.TableColumn("expected", "int"),
                    dg.TableColumn("found", "int"),
                ]
            ),
        )
    return dg.AssetCheckResult(
        check_name=check.name,
        asset_key=check.asset_key,
        passed=outcome == "converged",
        severity=dg.AssetCheckSeverity.WARN if outcome == "unknown" else dg.AssetCheckSeverity.ERROR,
        metadata=metadata,
    )


def _confirm(context: dg.AssetCheckExecutionContext, tables: Tables, name: str, verdict: "Verdict") -> None:
    """Record that curated is as fresh as the cut, though no merge may have been due: the stream was idle.

    FreshnessPolicy looks at materializations alone, and nothing less than this comparison tells an idle
    source from a dead capture.
    """
    with as_failure():
        history = tables.curated(name)
    if history is None or verdict.cut is None:
        return
    metadata = curated_metadata(history) | {"committed": False, "confirmed_at_lsn": _lsn(verdict.cut.lsn)}
    context.op_execution_context.log_event(
        dg.AssetMaterialization(
            curated_key(name), description="Compared with the source and found equal", metadata=metadata
        )
    )


def _health(name: str, stage: Stage) -> dg.AssetChecksDefinition:
    key = stage_key(stage, name)

    @dg.multi_asset_check(
        name=f"{stage}_{name}_health",
        specs=[dg.AssetCheckSpec(check, asset=key, description=about) for check, (_, about) in _HEALTH.items()],
        can_subset=True,
        description=f"The state of `{stage}.{name}`, from its metadata alone: no data file is opened.",
    )
    def healthy(
        context: dg.AssetCheckExecutionContext, tables: dg.ResourceParam[Tables]
    ) -> Iterator[dg.AssetCheckResult]:
        with as_failure():
            found = tables.examine(name, stage)
        for check in sorted(context.selected_asset_check_keys, key=lambda k: k.name):
            yield health_result(found, check)

    return healthy


def health_result(examined: "Examined | None", check: dg.AssetCheckKey) -> dg.AssetCheckResult:
    """What a table's state means for one check: beyond a limit is a warning, for nothing is wrong but slow or large.

    A table whose maintenance is halted may hold wrong rows: an error.
    """
    if examined is None:
        metadata: dict[str, Any] = {"reason": "the table has no snapshot yet"}
        return dg.AssetCheckResult(check_name=check.name, asset_key=check.asset_key, passed=True, metadata=metadata)
    found = [f for f in examined.findings if f.group == _HEALTH[check.name][0]]
    metadata = health_metadata(examined.state)
    if found:
        rows = [(f.figure, f"{f.measured:,.6g}", f"{f.limit:,.6g}", f.action) for f in found]
        # An alert is made of these two.
        metadata["reason"] = "; ".join(f"{f.figure} is {f.measured:,.6g}, limit {f.limit:,.6g}" for f in found)
        metadata["action"] = found[0].action
        metadata["beyond"] = dg.MetadataValue.md(markdown(("figure", "measured", "limit", "what to do"), rows))
    return dg.AssetCheckResult(
        check_name=check.name,
        asset_key=check.asset_key,
        passed=not found,
        severity=dg.AssetCheckSeverity.ERROR if any(f.figure == HALTED for f in found) else dg.AssetCheckSeverity.WARN,
        metadata=metadata,
    )


def _dead_letters(name: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        name=DEAD_LETTERS_ARE_CLOSED,
        asset=landing_key(name),
        description="No change of this table waits among the dead letters: each was applied or a person discarded it.",
    )
    def dead_letters_are_closed(tables: dg.ResourceParam[Tables]) -> dg.AssetCheckResult:
        with as_failure():  # What can't be read is no answer: the check raises, and neither passes nor fails.
            rows = tables.letters(name)
        metadata = letters_metadata(rows)
        if len(rows):
            metadata["action"] = f"`cdc-platform dead-letters list {name}`"
        return dg.AssetCheckResult(passed=rows.empty, severity=dg.AssetCheckSeverity.WARN, metadata=metadata)

    return dead_letters_are_closed


def _automation(operation: Operation, name: str, table: Table, attempts_max: int) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        name=AUTOMATION_SUCCEEDS,
        asset=operation.asset(name),
        description=f"{operation.name}_sensor has not used up its attempts for this table.",
    )
    def automation_succeeds(
        context: dg.AssetCheckExecutionContext, tables: dg.ResourceParam[Tables]
    ) -> dg.AssetCheckResult:
        with as_failure():
            found = situation(
                operation,
                name,
                table,
                tables=tables,
                instance=context.instance,
                attempts_max=attempts_max,
            )
        return dg.AssetCheckResult(
            passed=not isinstance(found.step, Exhausted),
            metadata={"reason": found.reason, "target": found.target or ""},
        )

    return automation_succeeds


def _slot_lag(name: str, table: Table, mb_max: int) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        name=SLOT_LAG_IS_BOUNDED,
        asset=source_key(table),
        description=f"The source keeps at most {mb_max} MB of WAL for capture, and removes none that it needs. "
        "One slot serves all tables of a source.",
        pool=f"source_{table.source_name}",
    )
    def slot_lag_is_bounded(tables: dg.ResourceParam[Tables]) -> dg.AssetCheckResult:
        with as_failure():
            lag = tables.slot_lag(name)
        figures = {
            "retained_bytes": lag.retained_bytes,
            "unconfirmed_bytes": lag.unconfirmed_bytes,
            "safe_bytes": lag.safe_bytes,
            "inactive_s": None if lag.inactive_s is None else round(lag.inactive_s, 3),
        }
        return dg.AssetCheckResult(
            passed=lag.within(mb_max),
            severity=dg.AssetCheckSeverity.ERROR if lag.in_danger else dg.AssetCheckSeverity.WARN,
            # Floats: bytes above 32 bits are no GraphQL integers, and they have to plot.
            metadata={label: float(value) for label, value in figures.items() if value is not None}
            | {"wal_status": lag.wal_status or "", "active": lag.active, "limit_bytes": float(mb_max << 20)},
        )

    return slot_lag_is_bounded


def _lsn(position: int) -> str:
    """A WAL position as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
