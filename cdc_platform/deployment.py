"""Where the declared tables meet addresses: the project's folder, its registry, its state, its endpoints.

Belongs here: finding tables.yaml and the state folder, names of the deployment's parts in other systems,
and the address of each part, read when asked for. Does not: connecting to any of them.
Everything under `state`:
    postgres/  changelog/<table>/  offsets/  lake/{catalog.db,warehouse}  dagster/  logs/  run/endpoints.json
"""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cdc_platform.errors import ConfigError, UnavailableError
from cdc_platform.registry.load import load_registry
from cdc_platform.registry.model import Registry, Table

CATALOG = "lake"  # One name in Spark and PyIceberg: the JDBC catalog's rows carry it.


@dataclass(frozen=True)
class Deployment:
    """One tables.yaml and all that runs for it."""

    project: Path  # The folder that holds tables.yaml.
    registry: Registry

    @classmethod
    def load(cls, project: str | Path | None = None) -> "Deployment":
        """Read the registry of `project`, else of $CDC_PLATFORM_PROJECT, else of the current folder."""
        folder = Path(project or os.environ.get("CDC_PLATFORM_PROJECT") or Path.cwd()).resolve()
        return cls(folder, load_registry(folder / "tables.yaml"))

    @property
    def state(self) -> Path:
        """Folder that holds everything the deployment writes on this machine."""
        return (self.project / self.registry.stack.state).resolve()

    @property
    def endpoints_file(self) -> Path:
        """JSON that `up` writes: the addresses of the embedded services. Readable by its owner only."""
        return self.state / "run" / "endpoints.json"

    def table(self, name: str) -> Table:
        """Return the table's declaration; raise ConfigError that lists the declared ones."""
        if name not in self.registry.tables:
            raise ConfigError(
                f"table `{name}` is not declared",
                where=str(self.project / "tables.yaml"),
                action=f"Use one of: {', '.join(sorted(self.registry.tables))}",
            )
        return self.registry.tables[name]

    def part_name(self, source: str) -> str:
        """Name of the slot, the publication and the connector in `source`: the deployment owns what bears it."""
        return f"cdc_{self.registry.deployment}_{source}"[:63]

    def changelog_dir(self, table: str) -> Path:
        """Folder of the table's change log."""
        return self.state / "changelog" / table

    def cuts_file(self, source: str) -> Path:
        """Where capture notes which moments of `source` the change logs hold."""
        return self.state / "offsets" / f"{source}.cuts.json"

    def offsets_file(self, source: str) -> Path:
        """Debezium's offsets for `source`."""
        return self.state / "offsets" / f"{source}.dat"

    def signals_file(self, source: str) -> Path:
        """Where a running capture of `source` looks for what it is asked to do."""
        return self.state / "offsets" / f"{source}.signals"

    def endpoints(self) -> dict[str, Any]:
        """Addresses of the embedded services as `up` wrote them, none before. PostgreSQL's holds the password."""
        return dict(self._endpoints)

    def endpoint(self, service: str) -> Any:
        """Address of an embedded service, as `up` wrote it."""
        if service not in self._endpoints:
            raise UnavailableError(
                f"no address of `{service}`: the stack has not been started here",
                where=str(self.endpoints_file),
                action="Run `cdc-platform up`",
            )
        return self._endpoints[service]

    @cached_property
    def _endpoints(self) -> dict[str, Any]:
        try:
            return json.loads(self.endpoints_file.read_text())
        except FileNotFoundError:
            return {}

    def source_url(self, source: str) -> str:
        """SQLAlchemy URL (psycopg 3) of a source; holds the password, so it is never logged."""
        postgres = self.registry.sources[source].postgres
        if postgres.embedded is not None:
            return f"{self.endpoint('postgres')}/{postgres.embedded}"
        assert postgres.url is not None
        url = os.environ.get(postgres.url.env)
        if not url:
            raise ConfigError(
                f"environment variable {postgres.url.env} is not set",
                where=f"{self.project / 'tables.yaml'}: sources.{source}.postgres.url",
                action=f"Set {postgres.url.env}=postgresql://user:password@host:5432/database",
            )
        scheme, _, rest = url.partition("://")
        if scheme not in {"postgres", "postgresql", "postgresql+psycopg"} or not rest:
            raise ConfigError(
                f"environment variable {postgres.url.env} holds no PostgreSQL URL",
                where=f"{self.project / 'tables.yaml'}: sources.{source}.postgres.url",
                action=f"Set {postgres.url.env}=postgresql://user:password@host:5432/database",
            )
        return f"postgresql+psycopg://{rest}"

    @property
    def spark_url(self) -> str:
        """Spark Connect's address: $SPARK_REMOTE (a cluster of yours), else the stack's own."""
        return os.environ.get("SPARK_REMOTE") or str(self.endpoint("spark"))

    @property
    def catalog_properties(self) -> dict[str, str]:
        """PyIceberg's properties of the catalog. SQLite waits for a lock instead of failing at once."""
        lake = self.state / "lake"
        return {
            "type": "sql",
            "uri": f"sqlite:///{lake / 'catalog.db'}?timeout=30",
            "warehouse": (lake / "warehouse").as_uri(),
        }
