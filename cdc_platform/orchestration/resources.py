"""The tables as assets, checks and sensors reach them.

Belongs here: the interface `Tables`, and `Platform`, which serves it from a project's registry and endpoints.
Does not: deciding anything. Heavy libraries are imported inside the methods.
"""

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import dagster as dg
from pydantic import Field, PrivateAttr

from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.errors import CdcError
from cdc_platform.hops.merge import MergeResult, curated_table, landing_table
from cdc_platform.lake.snapshot import TableHistory
from cdc_platform.maintenance.rewrite import RewriteEffect

if TYPE_CHECKING:
    from cdc_platform.convergence.converge import Verdict
    from cdc_platform.lake.catalog import Lake

Stage = Literal["landing", "curated"]


class Tables(Protocol):
    """What Dagster needs of the platform, by table name. Raises CdcError."""

    def landing(self, name: str) -> TableHistory | None:
        """History of the landing table, None before its first commit. Cheap: metadata alone."""
        ...

    def curated(self, name: str) -> TableHistory | None:
        """History of the curated table, None before its first merge. Cheap: metadata alone."""
        ...

    def merge(self, name: str, *, run_id: str) -> MergeResult:
        """Merge landing into curated."""
        ...

    def rewrite_data_files(self, name: str) -> RewriteEffect:
        """Rewrite the landing table's files."""
        ...

    def converge(self, name: str, stage: Stage) -> "Verdict":
        """Compare a stage with the source; wait for it. What can't be asked is `unknown`, not an error."""
        ...


class Platform(dg.ConfigurableResource):
    """The tables of one project."""

    project: str = Field(description="Folder that holds tables.yaml.")

    _local: threading.local = PrivateAttr(default_factory=threading.local)

    @cached_property
    def deployment(self) -> Deployment:
        """The project's registry and addresses, read at first use."""
        return Deployment.load(self.project)

    @property
    def _lake(self) -> "Lake":
        """One catalog for each thread: PyIceberg's are not shared."""
        if not hasattr(self._local, "lake"):
            from cdc_platform.lake.catalog import Lake

            self._local.lake = Lake(CATALOG, self.deployment.catalog_properties)
        return self._local.lake

    def landing(self, name: str) -> TableHistory | None:
        """See `Tables`."""
        return self._lake.history(landing_table(name))

    def curated(self, name: str) -> TableHistory | None:
        """See `Tables`."""
        return self._lake.history(curated_table(name))

    def merge(self, name: str, *, run_id: str) -> MergeResult:
        """See `Tables`."""
        from cdc_platform.hops.merge import merge
        from cdc_platform.lake.spark import spark_session

        with spark_session(self.deployment.spark_url) as spark:
            return merge(spark, self._lake, name, self.deployment.table(name), run_id=run_id)

    def rewrite_data_files(self, name: str) -> RewriteEffect:
        """See `Tables`."""
        from cdc_platform.lake.spark import spark_session
        from cdc_platform.maintenance.rewrite import rewrite_data_files

        with spark_session(self.deployment.spark_url) as spark:
            return rewrite_data_files(spark, self._lake, landing_table(name))

    def converge(self, name: str, stage: Stage) -> "Verdict":
        """See `Tables`."""
        from cdc_platform.changelog.segments import SegmentLog
        from cdc_platform.convergence.converge import Verdict, converge
        from cdc_platform.convergence.stages import CuratedStage, LandingStage
        from cdc_platform.lake.spark import spark_session
        from cdc_platform.source.postgres import source_engine
        from cdc_platform.source.state import Measures, read_cut

        deployment, table = self.deployment, self.deployment.table(name)
        measures = Measures(table.convergence.sums, table.convergence.distribution)
        stage_of = {"landing": LandingStage, "curated": CuratedStage}[stage]
        try:
            engine = source_engine(deployment.source_url(table.source_name))
            with spark_session(deployment.spark_url) as spark:
                return converge(
                    lambda: read_cut(engine, schema=table.source_schema, table=table.source_table, measures=measures),
                    stage_of(
                        name=name,
                        engine=engine,
                        slot=deployment.part_name(table.source_name),
                        log=SegmentLog(deployment.changelog_dir(name)),
                        lake=self._lake,
                        spark=spark,
                        measures=measures,
                    ),
                    within_s=table.convergence.within.total_seconds(),
                )
        except CdcError as error:
            return Verdict("unknown", str(error), 0.0)
