"""The maintenance policy of a table: when each operation is due, within which bounds, and what must stay.

Belongs here: the declaration, its classes and overrides, and the policy that follows from them. Does not: deciding by
it (`maintenance/policy.py`).
A policy is layered: a built-in class, declared classes that start from one another (`like`), a table's own override.
Each layer changes the keys that it gives and no other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from cdc_platform.registry.declared import Declared, Duration, Name

Stage = Literal["landing", "curated"]
_DAY_MIN = 24 * 60
MB = 1 << 20  # What `_mb` means in a key, in bytes.
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]"


def _hours(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(rf"{_TIME}-{_TIME}", value):
        raise ValueError('write hours as "22:00-06:00" (UTC, 24 hours), in quotes')
    begin, _, end = value.partition("-")
    if begin == end:
        raise ValueError(f"`{value}` begins and ends at the same minute: give two different ends")
    return value


def _in_a_list(value: object) -> object:
    if isinstance(value, str):
        raise ValueError('write a list, also of one: ["22:00-06:00"]')
    return value


QuietHours = Annotated[str, BeforeValidator(_hours)]
_MB_MAX = 1 << 30  # A PiB: more is a slip of the pen.
RefPattern = Annotated[str, StringConstraints(min_length=1)]


class MaintenanceKeys(Declared):
    """The keys of a policy."""

    rewrite_after_commits: int = Field(default=50, ge=2, description="Commits that start rewrite_data_files.")
    rewrite_delete_files: int = Field(default=100, ge=1, description="Live delete files that start it.")
    rewrite_delete_ratio: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="Deleted rows and keys per data record that start it."
    )
    rewrite_small_files: int = Field(default=100, ge=2, description="Small data files that start it.")
    rewrite_by: Literal["count", "model"] = Field(
        default="count",
        description="`count`: by the figures above. `model`: once readers have paid as many extra seconds since the "
        "last rewrite as a rewrite costs, by this table's own past runs; until there are two, by count.",
    )
    reads_per_hour: float = Field(
        default=12, gt=0, allow_inf_nan=False, description="Full reads of the table, for the model."
    )
    positions_after_files: int = Field(
        default=10, ge=1, description="Position-delete files that start rewrite_position_delete_files."
    )
    expire_after_snapshots: int = Field(
        default=100, ge=1, description="Snapshots beyond those to keep that start expire_snapshots."
    )
    keep_snapshots_for: Duration = Field(default=timedelta(days=5), description="Age below which a snapshot stays.")
    keep_snapshots_min: int = Field(default=10, ge=1, description="Newest snapshots that stay whatever their age.")
    keep_refs: tuple[RefPattern, ...] = Field(
        default=(), description="Patterns (`*`) of tags and branches that stay even past their own declared age."
    )
    min_interval: Duration = Field(
        default=timedelta(minutes=1), description="Between the end of a run and the next of the same operation."
    )
    quiet_hours: Annotated[tuple[QuietHours, ...], BeforeValidator(_in_a_list)] = Field(
        default=(),
        description="Hours of the day, UTC, in which no sensor starts maintenance: `22:00-06:00`. The first minute "
        "is quiet, the last is not.",
    )
    run_time_max: Duration = Field(default=timedelta(minutes=30), description="After which a run is stopped.")
    run_mb_max: int = Field(
        default=102_400, ge=1, le=_MB_MAX, description="Data that one run may write anew; the rest is for the next."
    )
    group_mb_max: int = Field(default=1024, ge=1, le=_MB_MAX, description="Data rewritten and committed at a time.")
    target_file_mb: int = Field(default=128, ge=1, le=_MB_MAX, description="Size of the files that a rewrite makes.")
    conflicts_max: int = Field(default=3, ge=1, le=20, description="Plans of one run that may lose to another writer.")
    alarm_at: float = Field(
        default=5.0,
        gt=1,
        allow_inf_nan=False,
        description="Times its trigger beyond which a figure fails the table's health check.",
    )
    orphans_min_age: Duration = Field(
        default=timedelta(days=3),
        ge=timedelta(days=1),
        description="Age below which remove_orphan_files takes no file. Less than a day, Iceberg itself refuses: "
        "a file of a running commit belongs to no snapshot yet.",
    )


class Maintenance(MaintenanceKeys):
    """One policy, whole. Each figure that starts an operation does so alone; the first that is reached counts."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        for inner, outer in (("target_file_mb", "group_mb_max"), ("group_mb_max", "run_mb_max")):
            if (small := getattr(self, inner)) > (large := getattr(self, outer)):
                raise ValueError(
                    f"`{inner}` is {small} and `{outer}` is {large}: raise `{outer}` to {small} at least, or lower "
                    f"`{inner}`"
                )
        return self

    @model_validator(mode="after")
    def _some_minute_is_not_quiet(self) -> Self:
        if self.quiet_hours and len({m for hours in self.quiet_hours for m in _minutes_of(hours)}) == _DAY_MIN:
            raise ValueError("`quiet_hours` cover the whole day: leave some minutes in which maintenance may start")
        return self

    def under(self, keys: MaintenanceKeys) -> "Maintenance":
        """This policy with the keys that were given in `keys`; raises ValidationError when the two don't fit."""
        given = {name: getattr(keys, name) for name in keys.model_fields_set & MaintenanceKeys.model_fields.keys()}
        return Maintenance.model_validate(self.model_dump() | given)


class MaintenanceClass(MaintenanceKeys):
    """A maintenance class of yours. A key that it does not give is as in the class that it starts from."""

    like: Name = Field(default="standard", description="Class that it starts from: a built-in or another of yours.")


class MaintenanceOfTable(MaintenanceKeys):
    """A table's class, or its class and what differs from it: `hot`, or `{class: hot, rewrite_after_commits: 20}`."""

    of_class: Name | None = Field(
        default=None,
        alias="class",
        description="Built-in or declared class; `hot` for landing, `standard` for curated.",
    )


def _class_alone(value: object) -> object:
    return {"class": value} if isinstance(value, str) else value


OfTable = Annotated[MaintenanceOfTable, BeforeValidator(_class_alone)]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A class that every registry has, and what its figures follow from."""

    policy: Maintenance
    why: str


BUILT_IN: Mapping[str, BuiltIn] = {
    "hot": BuiltIn(
        Maintenance(rewrite_after_commits=10, expire_after_snapshots=500, keep_snapshots_for=timedelta(hours=1)),
        "Landing's default. A full read of 1 M rows takes 2.1 times as long at 10 delete files and 7.8 times at 100 "
        "(measured), and a commit brings at least one. Every commit writes all snapshots into a new metadata file: an "
        "hour of commits every second are 3,600. Nobody travels in landing's time, and what a reader still needs is "
        "pinned whatever its age.",
    ),
    "standard": BuiltIn(
        Maintenance(),
        "Curated's default. Copy-on-write leaves no deletes behind, so a rewrite is about small files; five days of "
        "history outlast a long weekend.",
    ),
    "audit": BuiltIn(
        Maintenance(
            expire_after_snapshots=1000, keep_snapshots_for=timedelta(days=90), keep_refs=("merge_*", "keep_*")
        ),
        "Curated with a quarter of a year to travel back in: a merge every five minutes makes 26,000 snapshots in that "
        "time. Tags of merges and those named `keep_` stay past their age.",
    ),
}
DEFAULT_CLASS: Mapping[Stage, str] = {"landing": "hot", "curated": "standard"}


def built_in() -> dict[str, Maintenance]:
    """The policies of the built-in classes, by name."""
    return {name: one.policy for name, one in BUILT_IN.items()}


def resolved(declared: Mapping[str, MaintenanceClass]) -> dict[str, Maintenance]:
    """The policy of each class, built-in and declared; raises ClassError that names the entry at fault."""
    found = built_in()
    if again := sorted(declared.keys() & found.keys()):
        raise ClassError(
            (again[0],), f"`{again[0]}` is a built-in class: declare one of another name with `like: {again[0]}`"
        )
    for name in declared:
        chain = [name]
        while (like := declared[chain[-1]].like) not in found:  # Bounded: `chain` holds no name twice.
            if like not in declared:
                known = ", ".join(sorted({*found, *declared} - {chain[-1]}))
                raise ClassError((chain[-1], "like"), f"no class is called `{like}` (known: {known})")
            if like in chain:
                circle = " → ".join([*chain[chain.index(like) :], like])
                raise ClassError((like, "like"), f"classes start from one another in a circle: {circle}")
            chain.append(like)
        for link in reversed(chain):
            if link not in found:
                try:
                    found[link] = found[declared[link].like].under(declared[link])
                except ValueError as error:
                    raise ClassError((link,), said(error)) from error
    return found


class ClassError(ValueError):
    """A class can't be resolved; `at` is the entry at fault, below the section that declares it."""

    def __init__(self, at: tuple[str, ...], what: str) -> None:
        super().__init__(what)
        self.at = at


def said(error: ValueError) -> str:
    """What a validation says, without pydantic's frame."""
    errors: Any = getattr(error, "errors", None)
    return str(errors()[0]["msg"]).removeprefix("Value error, ") if errors else str(error)


def quiet_minutes(hours: str) -> tuple[int, int]:
    """Begin and end of an entry of `quiet_hours` in minutes after midnight, UTC; the form has been checked."""
    begin, end = (datetime.strptime(side, "%H:%M").time() for side in hours.split("-"))
    return begin.hour * 60 + begin.minute, end.hour * 60 + end.minute


def _minutes_of(hours: str) -> list[int]:
    begin, end = quiet_minutes(hours)
    return [minute % _DAY_MIN for minute in range(begin, end if begin < end else end + _DAY_MIN)]
