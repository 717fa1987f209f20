"""One maintenance run of one table: gate, plan, do, prove, record.

Belongs here: the order of these steps, what is tried again and what is given up, and what a run has to prove. Does not:
when to run (`maintenance/policy.py`), the statements (`maintenance/procedures.py`), what is planned (`plan.py`).
Rules:
- A dry run stops at the plan, and so does a run with nothing to do, which is recorded as one all the same.
- A rewrite is a series of calls of at most a group each; each is a commit, so a run that is stopped keeps what it
  finished, records it as not complete, and raises what stopped it, unless that was its own time limit. It takes what
  the plan saw, not what writers add meanwhile.
- Each snapshot that a run made is compared with its own parent, whatever other writers committed in between: rows,
  checksum, and row lineage on v3. At most `GROUPS_MAX` calls of a run, a commit each, and another where deletes dangle.
- A commit that another writer's was before is tried again by Iceberg itself, on metadata alone: the table is told to do
  so more often than by default, unless it says something of its own (`commit.retry.*`).
- A snapshot that changed rows halts all maintenance of the table (`maintenance/halted.py`), dry runs apart.
- A run that fails leaves a record too, so that the next one waits, the longer the more of them failed.
- A conflict is met with a new plan after a pause that grows, up to `conflicts_max` of them; the seconds that went into
  what another writer's commit made void are counted. An answer that was lost is looked for in the table's history.
- Expiry takes exactly the planned snapshots, or it fails; what the remaining ones need is looked for on the store, and
  so is what should have gone.
- Files are removed as orphans only from a folder that no other table of the catalog has a part in, and only if the
  procedure and our own reading of every snapshot both say so.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import (
    CdcError,
    CommitUnknownError,
    ConfigError,
    ConflictError,
    InvariantError,
    LimitError,
    UnavailableError,
)
from cdc_platform.lake.catalog import Lake, history_of
from cdc_platform.lake.files import FileListing, Reach, listing_of, normal_path, reach_of
from cdc_platform.lake.snapshot import Snapshot, TableHistory
from cdc_platform.lake.spark import Spark
from cdc_platform.maintenance.gates import Facts, require
from cdc_platform.maintenance.halted import Halt, halted
from cdc_platform.maintenance.health import TableHealth, health_of_loaded, small
from cdc_platform.maintenance.plan import (
    ExpiryPlan,
    ManifestPlan,
    OrphanPlan,
    Plan,
    PositionDeletePlan,
    RewritePlan,
    expiry_plan,
    manifest_plan,
    position_delete_plan,
    rewrite_plan,
)
from cdc_platform.maintenance.probe import Probe, columns, probe, require_same
from cdc_platform.maintenance.procedures import CODEC, PATIENCE, Procedures
from cdc_platform.maintenance.protection import Retention, keeping, neighbour, swept
from cdc_platform.maintenance.runs import Operation, PastRun, past_runs, with_run
from cdc_platform.registry.maintenance import MB, Maintenance

if TYPE_CHECKING:
    from pyiceberg.table import Table

_PAUSE_S, _PAUSE_MAX_S = 1.0, 60.0
_FILES_CHECKED_MAX = 2_000
_PLACES = {  # Properties that name another folder for a table's files.
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
}
_DAY_MS = 86_400_000
ORPHANS_MAX = 10_000  # Of one run.


@dataclass(frozen=True, slots=True)
class Effect:
    """What a run did, and what it bought."""

    operation: Operation
    table: str
    run_id: str
    plan: Plan
    snapshot_ids: tuple[int, ...]  # That it made, oldest first.
    before: TableHealth
    after: TableHealth
    probe_before: Probe | None  # None where the operation changes nothing that a read sees.
    probe_after: Probe | None
    took_s: float  # Of the procedure: without planning, probes and what was lost.
    conflicts: int
    lost_s: float
    outcome: str
    notes: tuple[str, ...] = ()
    removed_files: int = 0  # Expiry and orphans.
    checked_files: int = 0  # That remaining snapshots need, looked for on the store.
    complete: bool = True  # False: planned files are left for the next run.
    rewritten_bytes: int = 0  # Of the files that it replaced.
    files_left: int = 0  # Planned to go with their snapshots, and still on the store: orphans from now on.
    expired_snapshots: int = 0

    @property
    def changed(self) -> bool:
        """Whether it did anything."""
        return bool(self.snapshot_ids or self.removed_files or self.expired_snapshots)

    def figures(self) -> dict[str, float]:
        """As numbers, under names that do not change, so that they plot."""
        found = {f"planned_{name}": value for name, value in self.plan.figures().items()}
        for when, health in (("before", self.before), ("after", self.after)):
            found |= {
                f"data_files_{when}": health.data_files,
                f"small_files_{when}": health.small_files,
                f"delete_files_{when}": health.delete_files,
                f"deletes_{when}": health.deletes,
                f"dangling_delete_files_{when}": health.dangling_delete_files,
                f"snapshots_{when}": health.snapshots,
                f"manifests_{when}": health.manifests,
                f"metadata_bytes_{when}": health.metadata_bytes,
                f"planning_s_{when}": health.planning_s,
            }
        for when, read in (("before", self.probe_before), ("after", self.probe_after)):
            if read is not None:
                found |= {
                    f"read_s_{when}": read.read_s,
                    f"files_opened_{when}": read.files.total,
                    f"rows_{when}": read.rows,
                }
        return found | {
            "took_s": self.took_s,
            "conflicts": self.conflicts,
            "lost_s": self.lost_s,
            "snapshots_made": len(self.snapshot_ids),
            "removed_files": self.removed_files,
            "checked_files": self.checked_files,
            "complete": int(self.complete),
            "rewritten_bytes": self.rewritten_bytes,
            "files_left": self.files_left,
        }


def _silent(_line: str) -> None:
    """Tell nobody."""


def maintain(
    spark: Spark,
    lake: Lake,
    table: str,
    operation: Operation,
    policy: Maintenance,
    *,
    dry_run: bool,
    run_id: str = "",
    say: Callable[[str], None] = _silent,
    clock: Callable[[], float] = time.time,
    timer: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    procedures: type[Procedures] = Procedures,
) -> Effect | Plan:
    """Carry out one operation on one table, telling `say` the plan first; with `dry_run` only return the plan.

    Raises ConfigError when it is refused, ConflictError after `conflicts_max` lost plans, LimitError when
    `run_time_max` was over before anything was done, InvariantError when the table is halted, or when the run did not
    do what it must, or more.
    """
    run = _Run(
        procedures(spark, lake.name, table), spark, lake, table, operation, policy, run_id, clock, timer, sleep, say
    )
    if not dry_run:
        run.require_not_halted()
    plan = run.gate_and_plan()
    for line in plan.lines():
        say(line)
    if dry_run:
        return plan
    return run.carry_out(plan)


@dataclass
class _Run:
    procedures: Procedures
    spark: Spark
    lake: Lake
    table: str
    operation: Operation
    policy: Maintenance
    run_id: str
    clock: Callable[[], float]  # The time of day, for ages and for the record.
    timer: Callable[[], float]  # For durations: it is never set back.
    sleep: Callable[[float], None]
    say: Callable[[str], None]
    took_s: float = 0.0
    lost_s: float = 0.0
    conflicts: int = 0
    written: int = 0  # Bytes of the files that it replaced.
    broke: Exception | None = None  # After a commit of its own.
    expired: int = 0
    recorded: bool = False
    removed: int = 0
    checked: int = 0
    files_left: int = 0
    probes: dict[tuple[int, tuple[str, ...]], Probe] = field(default_factory=dict[tuple[int, tuple[str, ...]], Probe])
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.began_s = self.timer()

    def require_not_halted(self) -> None:
        """Raise InvariantError on a table that bears the mark of a failed proof."""
        if (found := halted(self.history())) is not None:
            raise found.error(self.lake.name)

    def gate_and_plan(self) -> Plan:
        """Refuse or plan. Asks the engine for its versions; reads metadata alone."""
        history, listing = self.looked_at()
        positions = sum(f.content == "position_deletes" and not f.vector for f in listing.files)
        mixed = 0 < len(listing.unpartitioned_specs) < listing.specs
        facts = Facts(listing.format_version, len(history.refs), positions, history.properties, mixed)
        require(self.operation, self.table, facts, self.procedures.engine())
        return self.plan(history, listing)

    def plan(self, history: TableHistory, listing: FileListing) -> Plan:
        past = past_runs(history.properties, self.operation)
        match self.operation:
            case "rewrite_data_files":
                return rewrite_plan(
                    listing,
                    past,
                    target_mb=self.policy.target_file_mb,
                    group_mb_max=self.policy.group_mb_max,
                    run_mb_max=self.policy.run_mb_max,
                )
            case "rewrite_position_delete_files":
                return position_delete_plan(listing, past)
            case "rewrite_manifests":
                return manifest_plan(listing, past)
            case "expire_snapshots":
                return self.plan_expiry(history)
            case "remove_orphan_files":
                return self.plan_orphans()

    def carry_out(self, plan: Plan) -> Effect:
        before = self.health()
        try:
            return self.carry_out_on(plan, before)
        except Exception:
            if not self.recorded:
                self.record_failure(before)
            raise

    def carry_out_on(self, plan: Plan, before: TableHealth) -> Effect:
        if plan.is_empty:
            return self.finish(plan, before, before, "nothing to do; no snapshot was made")
        said = self.history().properties.keys()
        lacking = {k: v for defaults in (PATIENCE, CODEC) if not defaults.keys() & said for k, v in defaults.items()}
        if lacking:
            self.procedures.set_properties(lacking)
        match plan:
            case RewritePlan() | PositionDeletePlan() | ManifestPlan():
                return self.rewrite(plan, before)
            case ExpiryPlan():
                return self.expire(plan, before)
            case OrphanPlan():
                return self.remove_orphans(plan, before)

    # What makes `replace` snapshots.

    def rewrite(self, plan: RewritePlan | PositionDeletePlan | ManifestPlan, before: TableHealth) -> Effect:
        head_id = _head_id(self.history())
        read_before = self.probe(head_id)
        made = list[Snapshot]()
        stopped: Exception | None = None
        calls, calls_max = 0, plan.groups if isinstance(plan, RewritePlan) else 1
        todo: Plan = plan
        # Bounded: each turn makes a call or is a conflict.
        while calls < calls_max and not todo.is_empty and self.may_write_more():
            try:
                fresh = self.one_call(todo)
            except ConflictError as error:
                if self.conflicts >= self.policy.conflicts_max:
                    stopped = self.gave_up(error, bool(made))
                    break
                self.pause(error)
            except Exception as error:  # Whatever was committed before is proven all the same; then it is raised.
                stopped = error
                break
            else:
                if not fresh:
                    todo = rewrite_nothing(before.snapshot_id)
                    break
                calls += 1
                for snapshot in fresh:
                    self.prove(snapshot)
                    self.say(f"snapshot {snapshot.snapshot_id} holds the same rows as its parent {snapshot.parent_id}")
                made += fresh
                if self.broke is not None:
                    stopped = self.broke
                    break
            todo = self.what_is_left(plan)
        if stopped is not None and not made:
            raise stopped
        complete = stopped is None and (todo.is_empty or not isinstance(plan, RewritePlan))
        after = self.health()
        read_after = self.probe(made[-1].snapshot_id) if made else read_before
        outcome = _told(before, after, made)
        if stopped is not None:
            self.notes.append(f"stopped before its end: {stopped}")
            outcome = f"stopped before its end ({_what(stopped)}): {outcome}"
        elif not complete:
            outcome += "; more is left than one run may take"
        reads = {"read_before": read_before, "read_after": read_after}
        failed = stopped is not None and not isinstance(stopped, LimitError)
        effect = self.finish(plan, before, after, outcome, made=made, complete=complete, failed=failed, **reads)
        if stopped is not None and failed:
            raise stopped
        return effect

    def may_write_more(self) -> bool:
        """Whether another group fits into what one run may write; the first always does."""
        return not self.written or self.written <= (self.policy.run_mb_max - self.policy.group_mb_max) * MB

    def pause(self, error: ConflictError) -> None:
        pause_s = _pause_s(self.conflicts)
        self.say(f"lost to another writer's commit ({_first_line(error)}); a new plan in {pause_s:.0f} s")
        self.sleep(pause_s)

    def one_call(self, plan: Plan) -> list[Snapshot]:
        """Call the procedure once; return the snapshots that it made, oldest first."""
        head_id = _head_id(self.history())
        began = self.timer()
        try:
            with self.spark.within(self.seconds_left(), setting="run_time_max"):
                claimed = self.call(plan)
        except CdcError as error:
            made = self.made_since(head_id)
            if not made:
                if isinstance(error, ConflictError):
                    self.conflicts += 1
                    self.lost_s += self.timer() - began
                raise  # After a CommitUnknownError the server may still be at it: the next run looks again.
            # What came after the rewrite, the removal of dangling deletes, was not committed; or the answer was lost.
            self.note(f"the rewrite was committed, and then: {_what(error)} ({_first_line(error)})")
            self.broke = error if isinstance(error, InvariantError | UnavailableError) else None
            claimed = 0
        else:
            made = self.made_since(head_id)
        self.took_s += self.timer() - began
        self.written += sum(map(_replaced_bytes, made))
        if claimed and not made:
            raise InvariantError(
                f"{self.operation} says that it rewrote {claimed} files, but made no snapshot",
                where=f"{self.table} at snapshot {head_id}",
                action="Look at Spark's log (`cdc-platform logs spark`) and whether another catalog serves this table",
            )
        return made

    def call(self, plan: Plan) -> int:
        match plan:
            case RewritePlan():
                return self.procedures.rewrite_data_files(
                    files_max=plan.files_per_call,
                    group_mb_max=self.policy.group_mb_max,
                    target_mb=self.policy.target_file_mb,
                )
            case PositionDeletePlan():
                return self.procedures.rewrite_position_delete_files()
            case _:
                return self.procedures.rewrite_manifests()

    def what_is_left(self, first: Plan) -> Plan:
        """A new plan; empty when of the first plan's files none is left to write anew, so that no writer is chased."""
        again = self.plan(*self.looked_at())
        if isinstance(first, RewritePlan) and isinstance(again, RewritePlan) and not first.paths & again.paths:
            return rewrite_nothing(again.snapshot_id)
        return again

    def made_since(self, head_id: int) -> list[Snapshot]:
        """`replace` snapshots between a former head and the present one, oldest first.

        Maintenance of a table runs alone (`one writer per table`), and the sink makes none: so they are this run's.
        """
        found = list[Snapshot]()
        for snapshot in self.history().ancestry():
            if snapshot.snapshot_id == head_id:
                return found[::-1]
            if snapshot.operation == "replace":
                found.append(snapshot)
        raise InvariantError(
            f"snapshot {head_id} is no longer an ancestor of the head",
            where=self.table,
            action="Look at it first: another program rolled it back, replaced it, or expired its history",
        )

    def prove(self, made: Snapshot) -> None:
        """Raise InvariantError unless a snapshot holds its parent's rows."""
        if made.parent_id is None:
            return
        pairs = ((made.parent_id, made.snapshot_id), (made.snapshot_id, made.parent_id))
        before, after = (self.probe(one, beside=other) for one, other in pairs)
        newer = list[int]()
        for snapshot in self.history().ancestry():
            if snapshot.snapshot_id == made.snapshot_id:
                break
            newer.append(snapshot.snapshot_id)
        try:
            require_same(self.table, self.operation, before, after, catalog=self.lake.name, newer_commits=newer)
        except InvariantError as error:
            self.halt(Halt(made.snapshot_id, made.parent_id, self.operation, int(self.clock() * 1000), error.what))
            raise
        if before.lineage is None and after.lineage is not None:
            self.note("the snapshot before it has no row lineage (made before the upgrade to v3): none to compare")
        if after.left_out:
            self.note(f"not in the checksum, for they can't be hashed: {', '.join(after.left_out)}")

    def halt(self, halt: Halt) -> None:
        """Keep the snapshot to go back to, and let nothing else touch the table. The mark first: it stops expiry."""
        for step in (
            lambda: self.procedures.set_properties(halt.property()),
            lambda: self.procedures.tag(halt.tag, halt.parent_id),
        ):
            try:
                step()
            except CdcError as error:  # What is wrong with the rows is still the error to raise.
                self.note(f"the table could not be marked as halted: {_what(error)}; stop its sensors at once")

    def probe(self, snapshot_id: int, beside: int | None = None) -> Probe:
        of = columns(self.lake, self.table, snapshot_id, beside=beside)
        key = (snapshot_id, of.expressions)
        if key not in self.probes:
            self.probes[key] = probe(self.spark, self.lake, self.table, snapshot_id, of)
        return self.probes[key]

    def gave_up(self, error: ConflictError, some: bool) -> ConflictError:
        what = f"{self.conflicts} plans lost to other writers' commits, and {self.lost_s:.0f} s of work with them"
        return ConflictError(
            what + ("; what was committed before stays" if some else ""),
            where=f"{self.operation} on {self.table}",
            action="Stop the other program that rewrites or deletes rows of this table, or run this when it is quiet; "
            "the setting is conflicts_max",
        ).with_traceback(error.__traceback__)

    def seconds_left(self) -> float:
        return self.policy.run_time_max.total_seconds() - (self.timer() - self.began_s)

    # Expiry.

    def plan_expiry(self, history: TableHistory) -> ExpiryPlan:
        now_ms = int(self.clock() * 1000)
        kept = keeping(history, Retention.of(self.policy), now_ms=now_ms)
        reach = self.reach()
        plan = expiry_plan(history, kept, reach)
        beyond = swept(history, now_ms=now_ms) - set(plan.snapshot_ids)
        if beyond:
            aged = [ref.name for ref in history.retention if ref.branch and ref.max_snapshot_age_ms is not None]
            raise ConfigError(
                f"an expiry would also take {len(beyond)} snapshots that must stay: branch {', '.join(aged)} declares "
                "a shorter age of its own",
                where=f"{self.table}, snapshot {min(beyond)}",
                action=f"Take that declaration away: `ALTER TABLE {self.lake.name}.{self.table} REPLACE BRANCH "
                f"`{aged[0] if aged else 'main'}` RETAIN 36500 DAYS WITH SNAPSHOT RETENTION 36500 DAYS`",
            )
        return plan

    def expire(self, plan: ExpiryPlan, before: TableHealth) -> Effect:
        todo = plan
        while True:  # Bounded by `conflicts_max`.
            try:
                return self.expire_once(todo, before)
            except ConflictError as error:
                self.conflicts += 1
                if self.conflicts >= self.policy.conflicts_max:
                    raise self.gave_up(error, some=False) from error
                self.pause(error)
            todo = self.plan_expiry(self.history())
            if todo.is_empty:
                return self.finish(todo, before, self.health(), "nothing is left to do: another expiry was first")

    def expire_once(self, plan: ExpiryPlan, before: TableHealth) -> Effect:
        history = self.history()
        self.require_free(plan, history)
        for ref in history.retention:
            if ref.name in plan.refs_renewed:
                self.procedures.renew(ref)
        began = self.timer()
        try:
            with self.spark.within(self.seconds_left(), setting="run_time_max"):
                self.removed = self.procedures.expire_snapshots(plan.snapshot_ids)
        except (CommitUnknownError, InvariantError, LimitError) as error:
            now = self.history()
            if set(plan.snapshot_ids) & now.snapshots.keys():
                self.require_free(plan, now)  # Another expiry, or a new tag, made the statement fail.
                raise
            self.notes.append(f"the table's history shows that the snapshots are gone, although: {_what(error)}")
        self.took_s += self.timer() - began
        self.require_expired(history, plan)
        self.expired = len(plan.snapshot_ids)
        self.look_for(plan)
        after = self.health()
        outcome = (
            f"{len(plan.snapshot_ids)} snapshots and {self.removed} data and delete files gone; "
            f"{len(plan.kept)} pins kept"
        )
        if self.files_left:
            outcome += f"; {self.files_left} files that were to go are still there"
        return self.finish(plan, before, after, outcome)

    def require_free(self, plan: ExpiryPlan, history: TableHistory) -> None:
        """Raise ConflictError when a planned snapshot is gone already, or somebody has pinned it since."""
        planned = set(plan.snapshot_ids)
        gone = planned - history.snapshots.keys()
        kept = keeping(history, Retention.of(self.policy), now_ms=int(self.clock() * 1000))
        if gone or planned & kept.ids:
            what = "another expiry took" if gone else "a branch or tag has since pinned"
            raise ConflictError(
                f"{what} {len(gone or planned & kept.ids)} of the planned snapshots",
                where=self.table,
                action="Run it again: it plans anew",
            )

    def look_for(self, plan: ExpiryPlan) -> None:
        """Count planned files that are still there: Iceberg only logs what it could not remove."""
        if self.removed >= len(plan.files):
            return
        loaded = self.loaded()
        looked_for = plan.files[:_FILES_CHECKED_MAX]
        self.files_left = sum(loaded.io.new_input(path).exists() for path in looked_for)
        if len(plan.files) > len(looked_for):
            self.note(f"of {len(plan.files)} files that were to go, {len(looked_for)} were looked for on the store")
        elif not self.removed:
            self.removed = len(plan.files) - self.files_left  # The answer was lost.
        if self.files_left:
            self.note(
                f"{self.files_left} of {len(plan.files)} files that were to go are still on the store: no snapshot "
                "leads to them any more, so only remove_orphan_files finds them"
            )

    def require_expired(self, before: TableHistory, plan: ExpiryPlan) -> None:
        """Exactly the planned snapshots are gone, and what the others need is there."""
        after = self.history()
        gone = before.snapshots.keys() - after.snapshots.keys()
        kept = keeping(before, Retention.of(self.policy), now_ms=int(self.clock() * 1000))
        more, fewer = (gone - set(plan.snapshot_ids)) & kept.ids, set(plan.snapshot_ids) - gone
        if more or fewer:
            raise InvariantError(
                f"{len(more)} snapshots are gone that were to stay ({_some(more)}), {len(fewer)} stayed that were "
                f"to go ({_some(fewer)})",
                where=self.table,
                action="Stop expiry of this table; another program may expire it too (look at `ALTER TABLE` settings "
                "history.expire.* and at other schedules)",
            )
        lost_refs = before.refs.keys() - after.refs.keys() - set(plan.refs_gone)
        if lost_refs:
            raise InvariantError(
                f"refs are gone that were to stay: {', '.join(sorted(lost_refs))}",
                where=self.table,
                action="Stop expiry of this table and make the tag again if its snapshot is still there",
            )
        self.require_files(after)

    def require_files(self, history: TableHistory) -> None:
        """What refs need is on the store; the newest first, up to a bound."""
        reach = self.reach([*{_head_id(history), *history.refs.values()}])
        needed = reach.needed(_head_id(history))
        loaded = self.loaded()
        missing = [p for p in needed[:_FILES_CHECKED_MAX] if not loaded.io.new_input(p).exists()]
        self.checked = min(len(needed), _FILES_CHECKED_MAX)
        if len(needed) > self.checked:
            self.note(f"of {len(needed)} files that refs need, {self.checked} were looked for on the store")
        if missing:
            raise InvariantError(
                f"{len(missing)} files are gone that a branch or tag needs, the first is {missing[0]}",
                where=self.table,
                action="Stop all maintenance of this table; restore the files from the store's versions, or rebuild it",
            )

    # Orphans.

    def plan_orphans(self) -> OrphanPlan:
        self.require_own_folder()
        older_than_ms = int(self.clock() * 1000) - max(
            int(self.policy.orphans_min_age.total_seconds() * 1000), _DAY_MS + 60_000
        )
        found = self.procedures.orphans(older_than_ms)
        known = self.everything()  # After it was listed: what was committed meanwhile is known too.
        wrong = [path for path in found if normal_path(path) in known]
        if wrong:
            raise InvariantError(
                f"remove_orphan_files would remove {len(wrong)} files that a snapshot needs, the first is {wrong[0]}",
                where=self.table,
                action="Nothing was removed. Don't run it on this table by hand either; report it with both paths",
            )
        loaded = self.loaded()
        chosen = tuple(sorted(found))[:ORPHANS_MAX]
        sizes = [len(loaded.io.new_input(path)) for path in chosen[:_FILES_CHECKED_MAX]]
        return OrphanPlan(chosen, sum(sizes), older_than_ms, len(known))

    def require_own_folder(self) -> None:
        """Raise ConfigError when another table of the catalog may have files in this one's folder."""
        loaded = self.loaded()
        places: dict[str, list[str]] = {}
        for name in self.lake.tables():
            other = None if name == self.table else self.lake.load(name)  # One that can't be read stops it here.
            if other is not None:
                places[name] = [other.location(), *(v for k, v in other.properties.items() if k in _PLACES)]
        shared = neighbour(loaded.location(), places)
        if shared is not None:
            raise ConfigError(
                f"table {shared} has files in the same folder, or in one above or below it ({places[shared][0]}): "
                "remove_orphan_files would take them for orphans",
                where=f"{self.table} at {loaded.location()}",
                action="Move one of them to a folder of its own, or never remove orphan files here",
            )

    def everything(self) -> frozenset[str]:
        """Every file that any of the table's snapshots or its metadata leads to."""
        loaded = self.loaded()
        reach = self.reach()
        metadata = [loaded.metadata_location, *(entry.metadata_file for entry in loaded.metadata.metadata_log)]
        statistics = [s.statistics_path for s in (*loaded.metadata.statistics, *loaded.metadata.partition_statistics)]
        own = {normal_path(path) for path in (*metadata, *statistics)}
        return frozenset(own | reach.files(reach.manifests_of).keys() | reach.metadata(reach.manifests_of).keys())

    def remove_orphans(self, plan: OrphanPlan, before: TableHealth) -> Effect:
        loaded = self.loaded()
        began = self.timer()
        with self.spark.within(self.seconds_left(), setting="run_time_max"):
            self.removed = self.procedures.remove_orphans(
                plan.files, location=loaded.location(), older_than_ms=plan.older_than_ms
            )
        self.took_s = self.timer() - began
        self.require_files(self.history())
        outcome = f"{self.removed} of {len(plan.files)} orphan files removed"
        return self.finish(plan, before, self.health(), outcome)

    # What all share.

    def finish(
        self,
        plan: Plan,
        before: TableHealth,
        after: TableHealth,
        outcome: str,
        *,
        made: Sequence[Snapshot] = (),
        complete: bool = True,
        failed: bool = False,
        read_before: Probe | None = None,
        read_after: Probe | None = None,
    ) -> Effect:
        """Record the run in the table and say what it was."""
        history = self.history()
        # What others committed meanwhile is none of its work, nor what it left.
        own_id = made[-1].snapshot_id if made else before.snapshot_id
        small_left = self.small_files(history, own_id) if self.operation == "rewrite_data_files" else None
        self.recorded = True
        self.record(
            before,
            snapshot_id=own_id,
            changed=bool(made or self.removed or self.expired),
            rewritten_bytes=self.written,
            read_before_s=read_before.read_s if read_before else None,
            read_after_s=read_after.read_s if read_after else None,
            small_files_left=small_left,
            complete=complete,
            failed=failed,
        )
        return Effect(
            operation=self.operation,
            table=self.table,
            run_id=self.run_id,
            plan=plan,
            snapshot_ids=tuple(s.snapshot_id for s in made),
            before=before,
            after=after,
            probe_before=read_before,
            probe_after=read_after,
            took_s=self.took_s,
            conflicts=self.conflicts,
            lost_s=self.lost_s,
            outcome=outcome,
            notes=tuple(self.notes),
            removed_files=self.removed,
            checked_files=self.checked,
            complete=complete,
            rewritten_bytes=self.written,
            files_left=self.files_left,
            expired_snapshots=self.expired,
        )

    def record_failure(self, before: TableHealth) -> None:
        """Record a run that settled nothing: what it lost, and that it failed."""
        try:
            self.record(before, snapshot_id=before.snapshot_id, changed=False, complete=False, failed=True)
        except CdcError as error:  # What the run failed with is still the error to raise.
            self.note(f"that it failed is not recorded: {_what(error)}")

    def record(self, before: TableHealth, **of_run: Any) -> None:
        """Write down in the table what `PastRun` says of this run: what all have in common, and `of_run`."""
        positions = self.operation == "rewrite_position_delete_files"
        run = PastRun(
            at_ms=int(self.clock() * 1000),
            took_s=self.took_s,
            delete_files=before.position_delete_files if positions else before.delete_files,
            deletes=before.deletes,
            lost_s=self.lost_s,
            **of_run,
        )
        self.procedures.set_properties(dict([with_run(self.history().properties, self.operation, run)]))

    def small_files(self, history: TableHistory, snapshot_id: int) -> int:
        """Small data files that count now (`health.small_files`) and were there at a snapshot."""
        snapshot = history.snapshots.get(snapshot_id)
        newest = None if snapshot is None else snapshot.sequence_number
        return sum(
            newest is None or f.sequence_number <= newest
            for f in small(self.looked_at()[1], self.policy.target_file_mb)
        )

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.say(text)

    def loaded(self) -> "Table":
        """The table as it is now; one without a snapshot is refused."""
        found = self.lake.load(self.table)
        if found is None or found.current_snapshot() is None:
            raise UnavailableError("it has no snapshot yet", where=self.table, action="Wait for the initial load")
        return found

    def history(self) -> TableHistory:
        return history_of(self.table, self.loaded())

    def looked_at(self) -> tuple[TableHistory, FileListing]:
        """History and files of one moment."""
        loaded = self.loaded()
        listing = listing_of(self.table, loaded)
        assert listing is not None, "`loaded` refuses a table without a snapshot"
        return history_of(self.table, loaded), listing

    def health(self) -> TableHealth:
        found = health_of_loaded(self.table, self.loaded(), self.policy.target_file_mb)
        assert found is not None, "`loaded` refuses a table without a snapshot"
        return found

    def reach(self, snapshot_ids: Sequence[int] | None = None) -> Reach:
        return reach_of(self.table, self.loaded(), snapshot_ids)


def rewrite_nothing(snapshot_id: int) -> RewritePlan:
    """A plan with nothing to do."""
    return RewritePlan(snapshot_id, 0, 0, 0, 0, 0, 0, 0, None)


def _head_id(history: TableHistory) -> int:
    assert history.head_id is not None, "`_Run.history` refuses a table without a snapshot"
    return history.head_id


def _told(before: TableHealth, after: TableHealth, made: Sequence[Snapshot]) -> str:
    if not made:
        return "nothing to rewrite; no snapshot was made"
    return (
        f"{before.data_files} data files, {before.delete_files} delete files with {before.deletes} deletes and "
        f"{before.manifests} manifests became {after.data_files}, {after.delete_files} with {after.deletes} and "
        f"{after.manifests}; no row changed"
    )


def _pause_s(conflicts: int) -> float:
    """Twice as long each time, with chance in it: two that lost to each other should not meet again."""
    return min(_PAUSE_MAX_S, _PAUSE_S * 2 ** (conflicts - 1)) * random.uniform(0.5, 1.5)  # noqa: S311


def _first_line(error: Exception) -> str:
    """What Iceberg said, which is in the cause: the line that names the conflict, without the files that it lists."""
    said = str(error.__cause__ or error).splitlines() or [""]
    named = next(
        (line for line in said if "ValidationException: " in line or "CommitFailedException: " in line), said[0]
    )
    return named.rpartition("Exception: ")[2][:120]


def _replaced_bytes(snapshot: Snapshot) -> int:
    """Of the files that a snapshot took away; of manifests, which a summary gives no size of, none."""
    return int(snapshot.summary.get("removed-files-size", 0))


def _what(error: Exception) -> str:
    return error.what if isinstance(error, CdcError) else type(error).__name__


def _some(ids: set[int]) -> str:
    return ", ".join(str(i) for i in sorted(ids)[:3]) or "none"
