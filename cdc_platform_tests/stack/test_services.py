import json
from pathlib import Path

import pytest

from cdc_platform.deployment import Deployment
from cdc_platform.stack import dagster_services, spark
from cdc_platform.stack.services import PORTS, choose_endpoint_ports, services, write_endpoints

TABLE = 'tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:orders"]}}'
EMBEDDED = f"deployment: shop\nsources: {{shop: {{postgres: {{embedded: shop}}}}}}\n{TABLE}"
ELSEWHERE = f"deployment: shop\nsources: {{shop: {{postgres: {{url: {{env: SHOP_URL}}}}}}}}\n{TABLE}"
NO_PORTS = dict.fromkeys(PORTS, 0)


def _deployment(project: Path, tables: str) -> Deployment:
    (project / "tables.yaml").write_text(tables)
    return Deployment.load(project)


@pytest.fixture(autouse=True)
def _own_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


def test_capture_and_the_sink_start_after_what_they_use(tmp_path: Path) -> None:
    found = services(_deployment(tmp_path, EMBEDDED), NO_PORTS)
    assert {service.name: service.starts_after for service in found} == {
        "postgres": (),
        "spark": (),
        "capture-shop": ("postgres", "spark"),
        "sink": ("postgres", "spark"),
        "webserver": (),
        "daemon": (),
    }


def test_what_is_the_operators_own_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example:15002")
    found = services(_deployment(tmp_path, ELSEWHERE), NO_PORTS)
    assert [service.name for service in found] == ["capture-shop", "sink", "webserver", "daemon"]


def test_listing_the_services_writes_nothing(tmp_path: Path) -> None:
    services(_deployment(tmp_path, EMBEDDED), NO_PORTS)
    assert [file.name for file in tmp_path.iterdir()] == ["tables.yaml"]


def test_spark_and_pyiceberg_have_one_catalog_and_one_warehouse(tmp_path: Path) -> None:
    deployment = _deployment(tmp_path, EMBEDDED)
    command = spark.service(deployment, 15002).command
    assert f"spark.sql.catalog.lake.warehouse={deployment.catalog_properties['warehouse']}" in command
    assert f"spark.sql.catalog.lake.uri=jdbc:sqlite:{deployment.state}/lake/catalog.db" in command
    assert "spark.connect.grpc.binding.address=127.0.0.1" in command


def test_endpoints_are_the_owners_alone_and_keep_their_ports(tmp_path: Path) -> None:
    deployment = _deployment(tmp_path, ELSEWHERE)
    deployment.endpoints_file.parent.mkdir(parents=True)
    ports = choose_endpoint_ports(deployment)
    write_endpoints(deployment, ports)
    assert deployment.endpoints_file.stat().st_mode & 0o777 == 0o600
    assert json.loads(deployment.endpoints_file.read_text()) == {
        "spark": f"sc://127.0.0.1:{ports['spark']}",
        "webserver": f"http://127.0.0.1:{ports['webserver']}",
    }
    again = choose_endpoint_ports(deployment)
    assert (again["spark"], again["webserver"]) == (ports["spark"], ports["webserver"])


def test_dagster_gets_the_projects_settings_and_workspace_or_defaults(tmp_path: Path) -> None:
    deployment = _deployment(tmp_path, EMBEDDED)
    home = dagster_services.prepare_home(deployment)
    assert (home / "dagster.yaml").read_text() == "telemetry:\n  enabled: false\n"
    webserver, daemon = dagster_services.services(deployment, 3000)
    assert webserver.command[-2:] == daemon.command[-2:] == ("-m", "cdc_platform.definitions")
    (tmp_path / "dagster.yaml").write_text("retention: {}\n")
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    dagster_services.prepare_home(deployment)
    assert (home / "dagster.yaml").read_text() == "retention: {}\n"
    webserver, daemon = dagster_services.services(deployment, 3000)
    assert webserver.command[-2:] == daemon.command[-2:] == ("-w", str(tmp_path / "workspace.yaml"))
