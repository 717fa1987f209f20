"""The registry's model: every field with its unit, bound and default; the default is the safe choice.

Belongs here: what can be declared, and rules between fields that need nothing but the declaration.
Does not: YAML (`registry/load.py`), or whether the source agrees (`source/doctor.py`).
A table's maintenance has a module of its own (`registry/maintenance.py`), as have the kinds of value
(`registry/declared.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, StringConstraints, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from cdc_platform.registry.declared import Declared, Duration, Name
from cdc_platform.registry.maintenance import (
    DEFAULT_CLASS,
    ClassError,
    Maintenance,
    MaintenanceClass,
    OfTable,
    Stage,
    built_in,
    resolved,
    said,
)

DEFAULT_STATE = ".cdc-platform"
_PARTITION_FIELD = re.compile(
    r"(?:(?P<name>bucket|truncate|year|month|day|hour)\(\s*(?:(?P<number>\d+)\s*,\s*)?(?P<column>[^()]+?)\s*\))"
)

Column = Annotated[str, StringConstraints(min_length=1)]
_PartitionText = Annotated[
    str,
    StringConstraints(
        pattern=r"^([^(),\s]+|(bucket|truncate)\(\s*[1-9][0-9]*\s*,\s*[^(),]+\)|(year|month|day|hour)\([^(),]+\))$"
    ),
]
ChangeKind = Literal["create", "update", "delete", "read", "truncate", "before", "message"]
# Types some of whose values the landing type can't hold. What may be done with such a value, the default first: `error`
# makes the record a dead letter; no other choice is made for anybody, for each writes what the source does not hold.
TypeFamily = Literal["numeric", "date", "timestamp", "timestamptz", "array"]
Policy = Literal["error", "null", "clamp", "string"]
POLICIES: Mapping[TypeFamily, tuple[Policy, ...]] = {
    "numeric": ("error", "null", "string"),  # No number is near NaN: nothing to clamp to.
    "date": ("error", "null", "clamp", "string"),
    "timestamp": ("error", "null", "clamp", "string"),
    "timestamptz": ("error", "null", "clamp", "string"),
    "array": ("error", "null"),  # Debezium does not send what a text could hold.
}
OF_COLUMN = "column."  # Before a column's name: a policy for it alone.
Owner = Annotated[str, StringConstraints(pattern=r"^(team:[A-Za-z0-9_-]+|[^@\s]+@[^@\s]+\.[^@\s]+)$")]


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One declared partition field: `transform` as Iceberg spells it (`identity`, `bucket[16]`, `day`)."""

    column: str
    transform: str

    @classmethod
    def parse(cls, text: str) -> "PartitionField":
        """Read `column`, `bucket(16, column)`, `day(column)`: the form has been checked."""
        match = _PARTITION_FIELD.fullmatch(text.strip())
        if match is None:
            return cls(text.strip(), "identity")
        number = f"[{match['number']}]" if match["number"] else ""
        return cls(match["column"], match["name"] + number)

    @property
    def name(self) -> str:
        """The field's name in the partition tuple, as Iceberg's own engines would call it."""
        kind = self.transform.partition("[")[0]
        suffix = {"identity": "", "truncate": "_trunc"}.get(kind, f"_{kind}")
        return self.column + suffix


class EnvVar(Declared):
    """The name of an environment variable; its value is read at run time and never stored or shown."""

    env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Postgres(Declared):
    """One PostgreSQL database: the stack's own (`embedded`) or yours (`url`)."""

    embedded: Name | None = Field(default=None, description="Database in the stack's PostgreSQL, made by `up`.")
    url: EnvVar | None = Field(default=None, description="Variable that holds postgresql://user:password@host/db.")

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.embedded is None) == (self.url is None):
            raise ValueError("give exactly one of `embedded: <database>` and `url: {env: <VARIABLE>}`")
        return self


class Source(Declared):
    """A database whose changes are captured."""

    postgres: Postgres
    slot_lag_max_mb: int = Field(
        default=1024, ge=1, description="WAL that the source may keep for capture before `slot_lag_is_bounded` fails."
    )


class Convergence(Declared):
    """What is compared between the source and each stage, and how long a stage may take to get there."""

    sums: tuple[Column, ...] = Field(default=(), description="Integer columns whose sums are compared.")
    distribution: Column | None = Field(default=None, description="Column whose count per value is compared.")
    within: Duration = Field(default=timedelta(seconds=60), description="Polled this long before giving up.")


def _null_in_words(value: object) -> object:
    if value is None:
        raise ValueError('the policy null is a word here: write it in quotes, "null"')
    return value


class ChangeType(Declared):
    """Where a record says what kind of change it is, and in which words."""

    column: Annotated[str, StringConstraints(min_length=1)] = Field(
        default="op", description="Top-level field of the record; Debezium's is `op`."
    )
    map: dict[str, ChangeKind] = Field(
        default={"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate", "m": "message"},
        description="What each of its values means. `before` is a row before its change: without the row after it, it "
        "is a delete.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.column in {"before", "after", "source", "transaction"}:
            raise ValueError(f"`column: {self.column}` is the name of another part of the record")
        if missing := {"create", "delete"} - set(self.map.values()):
            raise ValueError(f"`map` has no value that means `{min(missing)}`")
        return self


class Landing(Declared):
    """Policy of the landing table."""

    window: Duration = Field(default=timedelta(seconds=1), description="Commit window: at most one snapshot in it.")
    maintenance: OfTable | None = Field(default=None, description="Its maintenance class, or class and overrides.")
    rewrite_after_commits: int | None = Field(
        default=None, ge=2, description="Short for the key of this name in `maintenance`; none: as its class has it."
    )
    mode: Literal["upsert", "before_image"] = Field(
        default="upsert",
        description="`upsert` deletes the old row of every changed key; `before_image` only where the event says that "
        "there was one, so a table that is only added to has no deletes.",
    )
    partition_by: tuple[_PartitionText, ...] = Field(
        default=(), description="Iceberg partition fields: `column`, `bucket(16, column)`, `day(column)`, and so on."
    )
    shards: int = Field(default=1, ge=1, le=64, description="Data files of a window (in each partition), by key hash.")
    memory_mb: int = Field(default=128, ge=16, description="Of a window in memory; what is more waits on disk.")
    heartbeat: Duration = Field(
        default=timedelta(hours=1), description="An idle table's position is committed again after this time."
    )
    dead_letters_max_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of dead letters among the newest 10,000 events that stops the table's sink; fewer than "
        "1,000 events count as 1,000, so that one letter among a few events stops nothing.",
    )
    change_type: ChangeType = ChangeType()
    types: dict[str, Annotated[Policy, BeforeValidator(_null_in_words)]] = Field(
        default={},
        description="What becomes of a value that its landing type can't hold, by type family (`numeric`, `date`, "
        "`timestamp`, `timestamptz`, `array`) or, before that, by `column.<name>`. Each family's choices and its "
        "default: [types](types.md).",
    )

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """`partition_by`, read."""
        return tuple(map(PartitionField.parse, self.partition_by))

    @model_validator(mode="after")
    def _one_count(self) -> Self:
        own = self.maintenance
        if self.rewrite_after_commits is None or own is None or "rewrite_after_commits" not in own.model_fields_set:
            return self
        if self.rewrite_after_commits != own.rewrite_after_commits:
            raise ValueError(
                f"`rewrite_after_commits` is {self.rewrite_after_commits} and in `maintenance` "
                f"{own.rewrite_after_commits}: remove one"
            )
        return self

    @model_validator(mode="after")
    def _partitions_by_a_column_once(self) -> Self:
        columns = [field.column for field in self.partition_fields]
        if twice := sorted({c for c in columns if columns.count(c) > 1}):
            raise ValueError(f"`partition_by` names column `{twice[0]}` twice, which PyIceberg can't write")
        return self

    @model_validator(mode="after")
    def _types_are_known(self) -> Self:
        families: Mapping[str, tuple[Policy, ...]] = POLICIES  # type: ignore[assignment]
        for name, policy in self.types.items():
            if name.removeprefix(OF_COLUMN) != name:
                continue  # The source knows the column's type: source/doctor.py.
            if name not in families:
                raise ValueError(
                    f"`types` names `{name}`, which is no family of types: use {', '.join(families)} or column.<name>"
                )
            if policy not in families[name]:
                raise ValueError(f"`types.{name}` is `{policy}`, allowed are: {', '.join(families[name])}")
        return self


class Curated(Declared):
    """The curated table's contract and promise."""

    contract: tuple[Column, ...] = Field(
        default=(),
        description="Columns whose change is a change for consumers; empty: all that are not the key.",
    )
    freshness: Duration = Field(default=timedelta(minutes=5), description="Oldest allowed last merge.")
    maintenance: OfTable | None = Field(default=None, description="Its maintenance class, or class and overrides.")


class Table(Declared):
    """One captured table, through every stage."""

    source: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*\.[^.]+\.[^.]+$")] = Field(
        description="<source>.<schema>.<table>"
    )
    key: tuple[Column, ...] = Field(min_length=1, description="Identifier columns that deletes match on.")
    description: str = ""
    owners: tuple[Owner, ...] = Field(min_length=1, description="team:<name> or an e-mail address.")
    convergence: Convergence = Convergence()
    landing: Landing = Landing()
    curated: Curated = Curated()
    _classes: dict[str, Maintenance] = PrivateAttr(default_factory=built_in)  # All that the registry knows.

    def maintenance(self, stage: Stage) -> Maintenance:
        """The policy of the table in `stage`: its class, then what it overrides."""
        own = (self.landing if stage == "landing" else self.curated).maintenance
        name = DEFAULT_CLASS[stage] if own is None or own.of_class is None else own.of_class
        if name not in self._classes:
            raise ClassError(("class",), f"no class is called `{name}` (known: {', '.join(sorted(self._classes))})")
        policy = self._classes[name]
        if own is not None:
            policy = policy.under(own)
        if stage == "landing" and (commits := self.landing.rewrite_after_commits) is not None:
            policy = policy.model_copy(update={"rewrite_after_commits": commits})
        return policy

    def learn(self, classes: dict[str, Maintenance]) -> None:
        """Know the registry's maintenance classes. Its registry calls this once, as it is made."""
        self._classes = classes

    @property
    def source_name(self) -> str:
        """Key of the source in the registry."""
        return self.source.split(".")[0]

    @property
    def source_schema(self) -> str:
        """Schema in the source database."""
        return self.source.split(".")[1]

    @property
    def source_table(self) -> str:
        """Table in the source database."""
        return self.source.split(".")[2]

    @property
    def named_columns(self) -> dict[str, tuple[str, ...]]:
        """Columns that an entry of this table names, by entry; the key apart."""
        distribution = (self.convergence.distribution,) if self.convergence.distribution else ()
        return {
            "convergence.sums": self.convergence.sums,
            "convergence.distribution": distribution,
            "curated.contract": self.curated.contract,
            "landing.types": tuple(n.removeprefix(OF_COLUMN) for n in self.landing.types if n.startswith(OF_COLUMN)),
            "landing.partition_by": tuple(field.column for field in self.landing.partition_fields),
        }

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        for field, columns in (
            ("key", self.key),
            ("convergence.sums", self.convergence.sums),
            ("curated.contract", self.curated.contract),
        ):
            if len(set(columns)) != len(columns):
                raise ValueError(f"`{field}` names a column twice")
        if both := set(self.key) & set(self.curated.contract):
            raise ValueError(
                f"`curated.contract` names the key column `{min(both)}`: a change of the key is a delete "
                "and a create, so leave it out"
            )
        compared = {*self.convergence.sums, *filter(None, [self.convergence.distribution])}
        if self.curated.contract and (loose := compared - set(self.key) - set(self.curated.contract)):
            raise ValueError(
                f"`convergence` compares `{min(loose)}`, which `curated.contract` leaves out: curated would "
                "differ from the source by design. Add it to the contract or compare another column"
            )
        return self


class Alerts(Declared):
    """Whom alerts_sensor tells, beside the file `alerts.jsonl` in the state folder."""

    webhook: EnvVar | None = Field(
        default=None, description="Variable that holds the address which each alert is posted to, as JSON."
    )


class Automation(Declared):
    """How Dagster's sensors drive the tables."""

    attempts_max: int = Field(default=3, ge=1, le=20, description="Runs for one target before it is given up, loudly.")
    alerts: Alerts = Alerts()


class Ports(Declared):
    """Loopback ports of the embedded services; a port that is not given is a free one."""

    postgres: int | None = Field(default=None, ge=1024, le=65535)
    spark: int | None = Field(default=None, ge=1024, le=65535)
    webserver: int | None = Field(default=None, ge=1024, le=65535)


class Stack(Declared):
    """The embedded services."""

    state: str = Field(default=DEFAULT_STATE, description="Folder for all state, relative to tables.yaml.")
    ports: Ports = Ports()
    spark_memory_mb: int = Field(default=3072, ge=1024, description="Spark driver's heap.")
    capture_memory_mb: int = Field(default=1024, ge=256, description="Debezium's heap, for each source.")
    disk_free_min_mb: int = Field(
        default=1024, ge=16, description="Free space on the state folder's disk below which capture holds still."
    )


def _error_at(where: tuple[str, ...], what: str) -> ValidationError:
    """An error that was found from above and belongs to an entry further down."""
    kind = PydanticCustomError("value_error", "{what}", {"what": what})
    return ValidationError.from_exception_data("Registry", [InitErrorDetails(type=kind, loc=where, input=None)])


class Registry(Declared):
    """All of tables.yaml."""

    deployment: Name = Field(description="Names the slot, publication and connector in each source.")
    automation: Automation = Automation()
    stack: Stack = Stack()
    maintenance: dict[Name, MaintenanceClass] = Field(
        default={}, description="Maintenance classes of yours, beside the built-in `hot`, `standard` and `audit`."
    )
    sources: dict[Name, Source] = Field(min_length=1)
    tables: dict[Name, Table] = Field(min_length=1)

    @model_validator(mode="after")
    def _maintenance_resolves(self) -> Self:
        try:
            classes = resolved(self.maintenance)
        except ClassError as error:
            raise _error_at(("maintenance", *error.at), str(error)) from error
        stages: tuple[Stage, Stage] = ("landing", "curated")
        for name, table in self.tables.items():
            table.learn(classes)
            for stage in stages:
                where = ("tables", name, stage, "maintenance")
                try:
                    table.maintenance(stage)
                except ClassError as error:
                    raise _error_at((*where, *error.at), str(error)) from error
                except ValueError as error:
                    raise _error_at(where, said(error)) from error
        return self

    @model_validator(mode="after")
    def _references_resolve(self) -> Self:
        seen: dict[str, str] = {}
        for name, table in self.tables.items():
            if table.source_name not in self.sources:
                raise ValueError(
                    f"table `{name}` reads source `{table.source_name}`, which `sources` does not declare "
                    f"(declared: {', '.join(sorted(self.sources))})"
                )
            # The asset key source/<schema>/<table> has no source in it.
            where = f"{table.source_schema}.{table.source_table}"
            if (other := seen.setdefault(where, name)) != name:
                raise ValueError(f"tables `{other}` and `{name}` both read a table `{where}`: keep one")
        return self

    def tables_of(self, source: str) -> dict[str, Table]:
        """Tables captured from `source`, by name."""
        return {name: table for name, table in self.tables.items() if table.source_name == source}
