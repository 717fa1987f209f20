"""Spark Connect on this machine: the command that starts it, with the Iceberg catalog of the deployment.

Belongs here: the server's settings, and versions of the jars it fetches. Does not: statements, or settings
of one session (`lake/spark.py`).
"""

import socket
from importlib.util import find_spec
from pathlib import Path

from cdc_platform.deployment import CATALOG, Deployment
from cdc_platform.stack.service import Service

# 1.12.0: older ones give every row of a v3 table a new `_row_id` in rewrite_manifests.
_PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0")
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_CATALOG_BUSY_MS = 30_000
_DETACHED_TIMEOUT = "30s"  # Spark's default is five minutes. Longer than our client tries again (`lake/spark.py`).
_OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"  # And be started again, rather than hang.


def service(deployment: Deployment, port: int) -> Service:
    """Return the Spark Connect server of `deployment`."""
    lake = deployment.state / "lake"
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # A client that was killed has interrupted nothing: its statement would run to its end, and commit. A live
        # client comes back at once when its stream is cut.
        "spark.connect.execute.manager.detachedTimeout": _DETACHED_TIMEOUT,
        "spark.connect.execute.manager.maintenanceInterval": "10s",
        # A lost client is noticed when its stream is cut, which is this often; by default every two minutes.
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "20s",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(deployment.state / "spark"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{lake / 'catalog.db'}",
        # Iceberg hands `jdbc.*` to the driver: wait for another writer's lock, as PyIceberg does.
        f"{catalog}.jdbc.busy_timeout": str(_CATALOG_BUSY_MS),
        f"{catalog}.jdbc.schema-version": "V1",
        # Each statement sees what others have committed: a cached table would be up to 30 s old.
        f"{catalog}.cache-enabled": "false",
        f"{catalog}.warehouse": deployment.catalog_properties["warehouse"],
    }
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "pyspark is a dependency"
    log_settings = Path(__file__).with_name("log4j2.properties").as_uri()
    command = (
        str(Path(spec.origin).parent / "bin" / "spark-submit"),
        *("--class", _SERVER, "--name", f"cdc_platform {deployment.registry.deployment}"),
        *("--master", "local[*]", "--driver-memory", f"{deployment.registry.stack.spark_memory_mb}m"),
        *("--driver-java-options", f"{_OUT_OF_MEMORY} -Dlog4j2.configurationFile={log_settings}"),
        *("--packages", ",".join(_PACKAGES)),
        *(option for name, value in settings.items() for option in ("--conf", f"{name}={value}")),
        "spark-internal",
    )
    return Service(
        name="spark",
        command=command,
        ready=lambda _pid: _listens(port),
        startsecs=10,
        # SQLite makes the file, not the folder.
        prepare=lambda: lake.mkdir(mode=0o700, parents=True, exist_ok=True),
    )


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
