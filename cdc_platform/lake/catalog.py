"""Iceberg metadata through PyIceberg: history, properties, refs. Never a landing row.

Belongs here: opening the catalog, and turning its answers into `lake/snapshot.py` values.
Does not: rows (PyIceberg refuses equality deletes; rows come through `lake/spark.py`), or commits of the
sink (`landing/commit.py`).
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from cdc_platform.errors import ConfigError, UnavailableError
from cdc_platform.lake.snapshot import Column, Ref, Snapshot, TableHistory

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


class Lake:
    """The catalog of one deployment. One object per thread: PyIceberg's catalogs are not shared."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._properties = dict(properties)
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> "Catalog":
        """PyIceberg's catalog, opened at first use."""
        if self._catalog is None:
            from pyiceberg.catalog import load_catalog

            uri = urlparse(self._properties.get("uri", ""))
            if uri.scheme == "sqlite":
                Path(unquote(uri.path)).parent.mkdir(parents=True, exist_ok=True)
            try:
                self._catalog = load_catalog(self.name, **self._properties)
            except Exception as error:
                raise UnavailableError(
                    "the Iceberg catalog can't be opened",
                    where=f"catalog {self.name} ({uri.scheme}://{uri.hostname or ''}{uri.path})",
                    action="Check the address and that its service answers",
                ) from error
        return self._catalog

    def load(self, table: str) -> "Table | None":
        """PyIceberg's table, or None when the catalog has none of that name."""
        from pydantic import ValidationError as Invalid
        from pyiceberg.exceptions import NoSuchTableError, ValidationError
        from sqlalchemy.exc import OperationalError

        try:
            return self.catalog.load_table(table)
        except NoSuchTableError:
            return None
        except (OperationalError, OSError) as error:
            raise UnavailableError(
                "the table's metadata can't be read", where=f"{self.name}.{table}", action="Try again later"
            ) from error
        except (Invalid, ValidationError) as error:
            raise ConfigError(
                "PyIceberg does not understand the table's metadata: a column of a newer type (`variant`), as a rule",
                where=f"{self.name}.{table}",
                action="Keep such columns out of the tables that are declared; Spark alone can read this one",
            ) from error

    def tables(self) -> tuple[str, ...]:
        """All tables of the catalog, in all namespaces, by name."""
        found, todo, seen = list[str](), list(self.catalog.list_namespaces()), set[tuple[str, ...]]()
        while todo:  # Bounded by `seen`.
            namespace = todo.pop()
            if namespace in seen:
                continue
            seen.add(namespace)
            found += [".".join(name) for name in self.catalog.list_tables(namespace)]
            todo += self.catalog.list_namespaces(namespace)
        return tuple(sorted(found))

    def history(self, table: str) -> TableHistory | None:
        """The table's history, or None when there is no such table."""
        loaded = self.load(table)
        return None if loaded is None else history_of(table, loaded)


class _Snapshots(Mapping[int, Snapshot]):
    """PyIceberg's snapshots as our values, each made when it is first asked for: a commit asks for the newest alone."""

    def __init__(self, snapshots: Iterable[Any]) -> None:
        self._raw = {s.snapshot_id: s for s in snapshots}
        self._made: dict[int, Snapshot] = {}  # A decision walks the same parents several times.

    def __getitem__(self, snapshot_id: int) -> Snapshot:
        if snapshot_id not in self._made:
            self._made[snapshot_id] = self._of(self._raw[snapshot_id])
        return self._made[snapshot_id]

    @staticmethod
    def _of(s: Any) -> Snapshot:
        return Snapshot(
            snapshot_id=s.snapshot_id,
            parent_id=s.parent_snapshot_id,
            sequence_number=s.sequence_number or 0,
            operation=s.summary.operation.value if s.summary else "",
            timestamp_ms=s.timestamp_ms,
            summary=dict(s.summary.additional_properties) if s.summary else {},
        )

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._raw

    def __iter__(self) -> Iterator[int]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def history_of(name: str, table: "Table") -> TableHistory:
    """Turn PyIceberg's metadata into our values."""
    metadata = table.metadata
    columns = tuple(Column(f.name, str(f.field_type), f.required, f.doc or "") for f in table.schema().fields)
    refs = {ref: r.snapshot_id for ref, r in metadata.refs.items()}
    retention = tuple(
        Ref(
            name=ref,
            snapshot_id=r.snapshot_id,
            branch=r.snapshot_ref_type.value == "branch",
            max_ref_age_ms=r.max_ref_age_ms,
            max_snapshot_age_ms=r.max_snapshot_age_ms,
            snapshots_min=r.min_snapshots_to_keep,
        )
        for ref, r in metadata.refs.items()
    )
    snapshots = _Snapshots(metadata.snapshots)
    properties = dict(metadata.properties)
    return TableHistory(name, columns, metadata.current_snapshot_id, snapshots, properties, refs, retention)
