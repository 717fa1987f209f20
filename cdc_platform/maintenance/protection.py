"""Which snapshots of a table must stay, and for whom.

Belongs here: the rules, from history and policy alone, and whose files lie in a table's folder. Does not: which files
go with the others (`maintenance/plan.py`), expiring (`maintenance/procedures.py`).
Rules:
- A branch keeps its newest snapshots by count and by age: by what it declares itself, else by the policy. Its head and
  every tag stay, unless the ref's own declared age is over and no `keep_refs` pattern names it.
  A tag of a failed proof (`maintenance/halted.py`) stays whatever it declares.
- Who walks parents needs every hop. A reader (`reader_*`) goes from the head back to its tag; so does the sink to
  its newest position, a merge to the newest one it stamped, and a Flink job to its newest committed checkpoint.
  Nothing between is cut. A Flink job that another of the same operator has followed is waited for as long as a
  snapshot's age says, no longer: it will not come back.
- Iceberg removes refs whose declared age is over in every expiry, and the ancestors that a branch's own declared age
  no longer holds (Iceberg 1.12.0, `RemoveSnapshots`): `swept` says which, so that nothing goes that was not planned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from cdc_platform.hops.merge import UPSTREAM_SNAPSHOT
from cdc_platform.lake.files import normal_path
from cdc_platform.lake.snapshot import Ref, Snapshot, TableHistory
from cdc_platform.landing.position import POSITION_TAG, landed
from cdc_platform.maintenance.halted import KEEP_BEFORE
from cdc_platform.registry.maintenance import Maintenance

MAIN = "main"
READER = "reader_"
FLINK_JOB, FLINK_OPERATOR = "flink.job-id", "flink.operator-id"
FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot that expiry must leave, and who needs it."""

    snapshot_id: int
    by: str  # `tag reader_curated_orders`, `branch main`, `the sink's position`, `Flink checkpoint 17 of job ...`.


@dataclass(frozen=True, slots=True)
class Retention:
    """What the policy says of snapshots."""

    age_ms: int
    count_min: int
    keep_refs: tuple[str, ...] = ()

    @classmethod
    def of(cls, policy: Maintenance) -> Self:
        """As the policy declares it."""
        age_ms = int(policy.keep_snapshots_for.total_seconds() * 1000)
        return cls(age_ms, policy.keep_snapshots_min, policy.keep_refs)


@dataclass(frozen=True, slots=True)
class Keeping:
    """What stays, and what pins more than age and count would."""

    ids: frozenset[int]
    kept: tuple[Kept, ...]
    refs_gone: tuple[str, ...]  # Their own declared age is over: the next expiry removes them.
    refs_renewed: tuple[Ref, ...]  # As much, but `keep_refs` names them: their age has to be lifted first.


def keeping(history: TableHistory, retention: Retention, *, now_ms: int) -> Keeping:
    """Return which snapshots stay, for whom."""
    over = [ref for ref in history.retention if ref.name != MAIN and _is_over(history, ref, now_ms)]
    renewed = tuple(
        ref for ref in over if any(fnmatchcase(ref.name, p) for p in (f"{KEEP_BEFORE}*", *retention.keep_refs))
    )
    gone = {ref.name for ref in over} - {ref.name for ref in renewed}
    refs = [ref for ref in history.retention if ref.name not in gone]
    if history.head_id is not None and not any(ref.name == MAIN for ref in refs):
        refs.append(Ref(MAIN, history.head_id, branch=True))

    by_rule = set[int]()
    for ref in refs:
        if ref.branch:
            by_rule |= _of_branch(history, ref, retention, now_ms)
    ids = set(by_rule)
    kept = list[Kept]()
    for snapshot_ids, pin, by in _pins(history, refs, retention, now_ms):
        more = len(snapshot_ids - by_rule)
        if more:
            kept.append(Kept(pin, f"{by}, {more} snapshot{'s' if more > 1 else ''}"))
        ids |= snapshot_ids
    # Neither a branch nor a tag leads to these: another writer's work, or a rollback's; they stay while they are young.
    reachable = {s.snapshot_id for ref in refs if ref.branch for s in history.ancestry(ref.snapshot_id)}
    ids |= {
        s.snapshot_id
        for s in history.snapshots.values()
        if s.snapshot_id not in reachable and s.timestamp_ms >= now_ms - retention.age_ms
    }
    return Keeping(frozenset(ids & history.snapshots.keys()), tuple(kept), tuple(sorted(gone)), renewed)


def swept(history: TableHistory, *, now_ms: int) -> frozenset[int]:
    """Snapshots that Iceberg's procedure takes by itself with `older_than` at the epoch: by what branches declare."""
    refs = [ref for ref in history.retention if ref.name == MAIN or not _is_over(history, ref, now_ms)]
    retained = {ref.snapshot_id for ref in refs}
    led_to = set(retained)
    for ref in refs:
        if not ref.branch:
            continue
        ended = False
        for n, snapshot in enumerate(history.ancestry(ref.snapshot_id)):
            led_to.add(snapshot.snapshot_id)
            declared = ref.max_snapshot_age_ms
            young = declared is None or snapshot.timestamp_ms >= now_ms - declared
            ended = ended or not (young or n < (ref.snapshots_min or 1))
            if not ended:
                retained.add(snapshot.snapshot_id)
    return frozenset(led_to - retained)


def neighbour(location: str, places: Mapping[str, Iterable[str]]) -> str | None:
    """A table that has a place equal to this location, above or below it: whose files are in the folder is unsure."""
    own = _folder(location)
    for table, theirs in places.items():
        if any(own.startswith(other) or other.startswith(own) for other in map(_folder, theirs)):
            return table
    return None


def _folder(path: str) -> str:
    return normal_path(path).rstrip("/") + "/"


def _pins(
    history: TableHistory, refs: Sequence[Ref], retention: Retention, now_ms: int
) -> Iterable[tuple[frozenset[int], int, str]]:
    """Each pin: what it keeps, the snapshot it is at, and who needs it."""
    for ref in refs:
        walks = ref.name.startswith(READER) or ref.name == POSITION_TAG
        kept = _chain(history, ref.snapshot_id) if walks else frozenset({ref.snapshot_id})
        what = "branch" if ref.branch else "the sink's position, tag" if ref.name == POSITION_TAG else "tag"
        yield kept, ref.snapshot_id, f"{what} {ref.name}"
    position = history.newest(landed)
    if position is not None:
        yield _chain(history, position.snapshot_id), position.snapshot_id, "the sink's position"
    merge = history.newest(lambda s: UPSTREAM_SNAPSHOT in s.summary)
    if merge is not None:
        yield _chain(history, merge.snapshot_id), merge.snapshot_id, "the newest merge's position"
    for snapshot in _flink(history, retention, now_ms):
        checkpoint, job = snapshot.summary[FLINK_CHECKPOINT], snapshot.summary[FLINK_JOB]
        yield _chain(history, snapshot.snapshot_id), snapshot.snapshot_id, f"Flink checkpoint {checkpoint} of job {job}"


def _flink(history: TableHistory, retention: Retention, now_ms: int) -> Iterable[Snapshot]:
    """The newest checkpoint of each job and operator that may come back."""
    seen, operators = set[tuple[str, str]](), set[str]()
    for snapshot in history.ancestry():
        job, operator = snapshot.summary.get(FLINK_JOB), snapshot.summary.get(FLINK_OPERATOR, "")
        if job is None or FLINK_CHECKPOINT not in snapshot.summary or (job, operator) in seen:
            continue
        followed = operator in operators and snapshot.timestamp_ms < now_ms - retention.age_ms
        seen.add((job, operator))
        operators.add(operator)
        if not followed:
            yield snapshot


def _chain(history: TableHistory, snapshot_id: int) -> frozenset[int]:
    """From the head back to a snapshot; the snapshot alone when no parent leads there."""
    walked = set[int]()
    for snapshot in history.ancestry():
        walked.add(snapshot.snapshot_id)
        if snapshot.snapshot_id == snapshot_id:
            return frozenset(walked)
    return frozenset({snapshot_id})


def _of_branch(history: TableHistory, ref: Ref, retention: Retention, now_ms: int) -> set[int]:
    """A branch's newest snapshots by count, and those younger than its age, up to the first that is neither."""
    age_ms = retention.age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms
    count_min = max(1, retention.count_min if ref.snapshots_min is None else ref.snapshots_min)
    kept = set[int]()
    for snapshot in history.ancestry(ref.snapshot_id):
        if len(kept) >= count_min and snapshot.timestamp_ms < now_ms - age_ms:
            break
        kept.add(snapshot.snapshot_id)
    return kept


def _is_over(history: TableHistory, ref: Ref, now_ms: int) -> bool:
    declared = ref.max_ref_age_ms
    if declared is None:
        declared = int(history.properties.get("history.expire.max-ref-age-ms", str(1 << 63)))
    snapshot = history.snapshots.get(ref.snapshot_id)
    return snapshot is not None and now_ms - snapshot.timestamp_ms > declared
