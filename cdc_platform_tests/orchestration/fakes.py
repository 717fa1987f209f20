"""Tables in memory, and a daemon that evaluates one sensor: what the orchestration is tested against.

The only place that fabricates runs: `DagsterInstance.add_run` with a status of our choice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pandas as pd
import yaml

from cdc_platform.convergence.converge import Verdict
from cdc_platform.deployment import Deployment
from cdc_platform.errors import UnavailableError
from cdc_platform.hops.merge import UPSTREAM_SNAPSHOT, MergeResult
from cdc_platform.lake.snapshot import Column, Snapshot, TableHistory
from cdc_platform.lake.spark import FilesOpened
from cdc_platform.landing.corrections import Answer, Correction
from cdc_platform.landing.letters import Choice
from cdc_platform.landing.position import LOAD_POSITION, LOG_POSITION, SOURCE_TS_MS
from cdc_platform.maintenance.due import BEGINNING, Due, Examined
from cdc_platform.maintenance.health import TableHealth
from cdc_platform.maintenance.maintain import Effect
from cdc_platform.maintenance.plan import Plan, RewritePlan
from cdc_platform.maintenance.policy import Decision, limits, rewrite_due
from cdc_platform.maintenance.probe import Probe
from cdc_platform.maintenance.runs import Operation, PastRun, past_runs, with_run
from cdc_platform.operations import Stage
from cdc_platform.orchestration.automation import TABLE_TAG, TARGET_TAG
from cdc_platform.registry.maintenance import Maintenance
from cdc_platform.registry.model import Registry
from cdc_platform.source.slot import SlotLag

HEALTH = TableHealth(
    *("landing.orders", 1, 2, 12, 900, 9000, 12, 11, 400, 0, 0, 0, 0, 700, 1, 30, 1000, 9, 22, 4000, 7000, 0.05)
)
HEALTHY = TableHealth("landing.orders", 2, 2, 1, 500, 4000, 1, 0, 0, 0, 0, 0, 0, 0, 0, 31, 1000, 0, 1, 900, 7000, 0.01)
_READS = ((1, 1.5, FilesOpened(12, 11)), (2, 0.25, FilesOpened(1, 0)))
COLUMNS = (Column("order_id", "long", True, "The key"), Column("status", "string", False))


def deployment(*tables: str, attempts_max: int = 3) -> Deployment:
    """A registry of `tables`, each with every convergence measure, rewritten after 2 commits."""
    declared = {
        "deployment": "shop",
        "automation": {"attempts_max": attempts_max},
        "sources": {"shop": {"postgres": {"embedded": "shop"}}},
        "tables": {
            name: {
                "source": f"shop.public.{name}",
                "key": ["order_id"],
                "description": f"The {name}.",
                "owners": ["team:orders"],
                "convergence": {"sums": ["order_id"], "distribution": "status"},
                "landing": {"rewrite_after_commits": 2},
                "curated": {"contract": ["status"]},
            }
            for name in tables
        },
    }
    return Deployment(Path("/nowhere"), Registry.model_validate(yaml.safe_load(yaml.safe_dump(declared))))


def history(table: str, *snapshots: Snapshot) -> TableHistory:
    """A table with these snapshots, oldest first; the last is the head."""
    return TableHistory(
        table,
        COLUMNS,
        snapshots[-1].snapshot_id if snapshots else None,
        {s.snapshot_id: s for s in snapshots},
    )


@dataclass
class FakeTables:
    """`orchestration.resources.Tables` over lists of snapshots. Curated ids count from 1001."""

    snapshots: dict[str, list[Snapshot]] = field(default_factory=dict)
    curated_snapshots: dict[str, list[Snapshot]] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    open_letters: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    letter_snapshots: dict[str, int] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    asked: list[tuple[object, ...]] = field(default_factory=list)
    spark_is_down: bool = False
    slot: SlotLag | None = field(
        default_factory=lambda: SlotLag(3 << 30, 5000, "reserved", None, active=False, inactive_s=1.5)
    )
    properties: dict[str, dict[str, str]] = field(default_factory=dict)
    states: dict[str, TableHealth] = field(default_factory=dict)
    past_retention: int = 0
    _ids: int = 0

    def require_spark(self) -> None:
        if self.spark_is_down:
            raise UnavailableError("nothing listens there", where="Spark Connect", action="Start it")

    def commit(self, name: str, operation: str = "overwrite") -> int:
        """The sink commits once, or a rewrite replaces files."""
        self._ids += 1
        commits = self.snapshots.setdefault(name, [])
        summary = {"total-data-files": "3", "total-delete-files": "2", "total-equality-deletes": "5"}
        if operation == "replace":
            summary["deleted-data-files"] = "3"
        else:
            summary |= {
                LOG_POSITION: str(self._ids * 10),
                "cdc.window": str(self._ids),
                LOAD_POSITION: "1",
                SOURCE_TS_MS: str(self._ids * 1000 - 250),
                "cdc.events.update": "2",
            }
        parent = commits[-1].snapshot_id if commits else None
        commits.append(Snapshot(self._ids, parent, self._ids, operation, self._ids * 1000, summary))
        if operation == "replace":
            self.record(name)
        return self._ids

    def record(self, name: str) -> None:
        """A rewrite that ended well says so in the table, whether it found something to do or not."""
        head = self.snapshots[name][-1].snapshot_id
        properties = self.properties.setdefault(name, {})
        key, value = with_run(properties, "rewrite_data_files", PastRun(head, head, 1.0, changed=True))
        properties[key] = value

    def landing(self, name: str) -> TableHistory | None:
        if name in self.broken:
            raise self.broken[name]
        if name not in self.snapshots:
            return None
        return replace(history(f"landing.{name}", *self.snapshots[name]), properties=self.properties.get(name, {}))

    def curated(self, name: str) -> TableHistory | None:
        merged = self.curated_snapshots.get(name)
        return history(f"curated.{name}", *merged) if merged else None

    def merge(self, name: str, *, run_id: str = "") -> MergeResult:
        if name in self.broken:
            raise self.broken[name]
        merged = self.curated_snapshots.setdefault(name, [])
        upstream = next(s for s in reversed(self.snapshots[name]) if LOG_POSITION in s.summary)
        parent = merged[-1].snapshot_id if merged else None
        summary = {UPSTREAM_SNAPSHOT: str(upstream.snapshot_id), "total-records": "7", "cdc.run-id": run_id}
        committed = 1001 + len(merged)
        merged.append(Snapshot(committed, parent, len(merged) + 1, "overwrite", 0, summary))
        return MergeResult(upstream.snapshot_id, committed, 3, 2, 1, len(merged), 0.5)

    def maintain(
        self,
        name: str,
        stage: Stage,
        operation: Operation,
        *,
        dry_run: bool = False,
        run_id: str = "",
        say: Callable[[str], None] = print,
    ) -> Effect | Plan:
        if name in self.broken:
            raise self.broken[name]
        plan = RewritePlan(1, 12, 9000, 11, 400, 1, 1, 4096, None)
        for line in plan.lines():
            say(line)
        if dry_run:
            return plan
        made = self.commit(name, "replace") if stage == "landing" else 9001
        probes = [Probe(n, 7, "x/s", None, read_s, opened, ()) for n, read_s, opened in _READS]
        return Effect(
            operation, f"{stage}.{name}", run_id, plan, (made,), HEALTH, HEALTHY, *probes, 2.0, 0, 0.0, "11 became none"
        )

    def due(self, name: str, stage: Stage, operation: Operation) -> Due:
        """By commits alone, on landing; a rewrite records itself."""
        if name in self.broken:
            raise self.broken[name]
        if (stage, operation) != ("landing", "rewrite_data_files"):
            return Due(Decision(False, "not due"), BEGINNING)
        landing = self.landing(name)
        decision = rewrite_due(landing, None, Maintenance(rewrite_after_commits=2), now_ms=10**15)
        runs = past_runs(landing.properties, operation) if landing else ()
        return Due(decision, str(runs[0].at_ms) if runs else BEGINNING)

    def examine(self, name: str, stage: Stage) -> Examined | None:
        if name in self.broken:
            raise self.broken[name]
        state = self.states.get(f"{stage}.{name}")
        if state is None:
            return None
        return Examined(state, limits(state, Maintenance(), past_retention_ids=range(self.past_retention)))

    def reject(self, name: str, reason: str, log_offset: int) -> None:
        """The sink writes a dead letter."""
        self.letter_snapshots[name] = self.letter_snapshots.get(name, 7000) + 1
        key = f'{{"order_id": {log_offset}}}'
        letter = {"log_offset": log_offset, "reason": reason, "op": "u", "key": key, "detail": "a | b"}
        at = pd.Timestamp(1_000 * log_offset, unit="ms", tz="UTC")
        self.open_letters.setdefault(name, []).append(letter | {"dead_at": at})

    def discard(self, name: str) -> None:
        """A person closes all letters."""
        self.letter_snapshots[name] += 1
        self.open_letters[name] = []

    def dead_letters(self, name: str) -> TableHistory | None:
        if name not in self.letter_snapshots:
            return None
        return history(f"dead_letters.{name}", Snapshot(self.letter_snapshots[name], None, 1, "append", 0, {}))

    def letters(self, name: str) -> pd.DataFrame:
        if name in self.broken:
            raise self.broken[name]
        columns = ["log_offset", "reason", "op", "key", "detail", "dead_at"]
        return pd.DataFrame(self.open_letters.get(name, []), columns=columns)

    def replay_letters(
        self,
        name: str,
        choice: Choice,
        correction: Correction | None = None,
        *,
        dry_run: bool,
        wait_s: float | None = None,
    ) -> list[Answer]:
        self.asked.append((name, choice, correction, dry_run, wait_s))
        return self.answers

    def slot_lag(self, name: str) -> SlotLag:
        if self.slot is None:
            raise UnavailableError("the source does not answer", where=name, action="Start it")
        return self.slot

    def converge(self, name: str, stage: str) -> Verdict:  # noqa: ARG002  The interface.
        return self.verdicts[stage]


@dataclass
class Daemon:
    """Evaluates a sensor as Dagster's daemon does: keeps its cursor, spends run keys, stores its events."""

    tables: FakeTables
    sensor: dg.SensorDefinition
    instance: dg.DagsterInstance = field(default_factory=dg.DagsterInstance.ephemeral)
    cursor: str | None = None
    spent: set[str] = field(default_factory=set)
    runs: list[dg.DagsterRun] = field(default_factory=list)

    def tick(self) -> dg.SensorResult:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = self.sensor(context, tables=self.tables)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in result.run_requests or ():
            assert request.run_key is not None
            if request.run_key not in self.spent:
                self.spent.add(request.run_key)
                self._add(dg.DagsterRun("job", str(uuid4()), tags=dict(request.tags)))
        return result

    def end(self, status: dg.DagsterRunStatus) -> None:
        """The newest run ends."""
        run = self.runs.pop()
        self.instance.delete_run(run.run_id)
        self._add(replace_status(run, status))

    def _add(self, run: dg.DagsterRun) -> None:
        self.runs.append(self.instance.add_run(run))

    @property
    def requested(self) -> list[tuple[str, str, str]]:
        """Table, target and state of each run, oldest first."""
        return [(run.tags[TABLE_TAG], run.tags[TARGET_TAG], run.status.value) for run in self.runs]


def replace_status(run: dg.DagsterRun, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    return dg.DagsterRun(run.job_name, run.run_id, tags=run.tags, status=status)


def evaluations(result: dg.SensorResult) -> list[dg.AssetCheckEvaluation]:
    return [e for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
