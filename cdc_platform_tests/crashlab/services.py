"""PostgreSQL and Spark Connect for the lab, started once for a run and stopped with it.

Belongs here: the lab's deployment and its two services. Does not: capture and sink, which are the lab's children.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cdc_platform.deployment import Deployment
from cdc_platform.stack import postgres, spark
from cdc_platform.stack.control import Stack
from cdc_platform.stack.jdk import java_home
from cdc_platform.stack.service import Service
from cdc_platform.stack.services import embedded_databases

_TABLES = """\
deployment: crashlab
stack: {spark_memory_mb: 1536, capture_memory_mb: 512}
sources: {shop: {postgres: {embedded: shop}}}
tables:
  accounts: {source: shop.public.accounts, key: [id], owners: ['team:lab'], landing: {window: 200ms}}
  lines: {source: shop.public.lines, key: [shop, id], owners: ['team:lab'], landing: {window: 200ms}}
"""


def deployment(folder: Path) -> Deployment:
    """The lab's deployment; all that it writes is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.yaml").write_text(_TABLES)
    return Deployment.load(folder)


@contextmanager
def services(lab: Deployment, names: tuple[str, ...]) -> Generator[None]:
    """Run the services of these names (`postgres`, `spark`) for a block."""
    if not names:
        yield
        return

    def declared(of: Deployment, ports: Mapping[str, int]) -> tuple[Service, ...]:
        found = {
            "postgres": lambda: postgres.service(of.state / "postgres", ports["postgres"], embedded_databases(of)),
            "spark": lambda: spark.service(of, ports["spark"]),
        }
        return tuple(found[name]() for name in names)

    os.environ["JAVA_HOME"] = java_home()  # Capture's children need it too.
    stack = Stack(lab, declared)
    stack.launch(bound=True, warn=lambda _: None)
    try:
        stack.start(tell=lambda _name, _seconds: None)
        yield
    finally:
        stack.stop()
