"""Dagster's UI in a real Chromium, over a stack whose demo has run.

CDC_SCREENSHOTS names a folder for the pictures; docs/images/asset-graph.png is a copy of one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from cdc_platform.demo.dagster_api import DagsterApi

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.ui,
    pytest.mark.e2e,
    pytest.mark.skipif(
        not CHROMIUM.exists() and not os.environ.get("CI"), reason="no browser: apt-get install chromium"
    ),
]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
GROUPS = ("source", "changelog", "landing", "curated")
SHOWN_WITHIN_MS = 60_000  # The first page compiles the whole UI on a busy machine.


class Stack(Protocol):
    """What the fixture `running_stack` gives."""

    webserver: str  # http://127.0.0.1:<port>


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CDC_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def compared(running_stack: Stack) -> Stack:
    """Every check has run: the UI shows a result only while no newer materialization has come."""
    DagsterApi(running_stack.webserver).run("check_convergence")
    return running_stack


@pytest.fixture
def page(compared: Stack) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(
            base_url=compared.webserver, viewport={"width": 1760, "height": 1040}, color_scheme="light"
        )
        page.set_default_timeout(SHOWN_WITHIN_MS)
        page.add_init_script("localStorage.setItem('dagster-nav-collapsed', 'true')")
        outside: list[str] = []
        page.on(
            "request",
            lambda r: None if r.url.startswith((compared.webserver, "data:", "blob:")) else outside.append(r.url),
        )
        yield page
        browser.close()
        assert outside == [], "the UI asks nobody but the stack"


def graph(page: Page, *groups: str) -> Locator:
    """The asset graph's nodes, with these groups expanded."""
    page.goto("/asset-groups?expanded=" + ",".join(f"global@global:{group}" for group in groups))
    nodes = page.locator("svg foreignObject")
    expect(nodes.filter(has_text="landing")).to_be_visible(timeout=SHOWN_WITHIN_MS)
    return nodes


@pytest.mark.parametrize("group", ["landing", "curated"])
def test_the_asset_graph_shows_each_table_in_its_stage(page: Page, group: str) -> None:
    nodes = graph(page, group)
    for table in ("orders", "order_items"):
        name = page.get_by_text(table, exact=True)
        expect(nodes.filter(has=name)).to_have_count(1, timeout=SHOWN_WITHIN_MS)
        expect(nodes.filter(has=name)).to_be_visible()


def test_the_asset_graph_shows_the_way_of_the_data(page: Page, screenshots: Path) -> None:
    nodes = graph(page, *GROUPS)
    page.get_by_label("panel_show_right").last.click()  # The list beside the graph.
    expect(nodes.filter(has=page.get_by_text("orders", exact=True))).to_have_count(len(GROUPS))
    passed = nodes.filter(has=page.get_by_text("orders", exact=True)).filter(has_text="6 / 6 Passed")
    expect(passed).to_have_count(2)  # Landing and curated.
    page.screenshot(path=screenshots / "asset-graph.png")


def test_the_result_of_a_check_shows_on_the_curated_table(page: Page, screenshots: Path) -> None:
    page.goto("/assets/curated/orders?view=checks&checkDetail=row_count_matches")
    expect(page.get_by_text("As many rows as the source, at one cut.")).to_be_visible(timeout=SHOWN_WITHIN_MS)
    expect(page.get_by_text("Passed", exact=True)).to_be_visible()
    metadata = page.get_by_role("row").filter(has_text="outcome")
    expect(metadata).to_contain_text("converged")
    page.screenshot(path=screenshots / "check.png")


def test_landing_shows_that_no_dead_letter_is_open(page: Page, screenshots: Path) -> None:
    page.goto("/assets/landing/orders?view=checks&checkDetail=dead_letters_are_closed")
    about = page.get_by_text("No change of this table waits among the dead letters", exact=False)
    expect(about.first).to_be_visible(timeout=SHOWN_WITHIN_MS)
    expect(page.get_by_role("row").filter(has_text="open_no_home")).to_contain_text("0")
    page.screenshot(path=screenshots / "dead-letters.png")


def test_the_columns_of_a_table_show_at_its_source(page: Page, screenshots: Path) -> None:
    page.goto("/assets/source/public/orders")
    expect(page.get_by_text("customer_id", exact=True)).to_be_visible(timeout=SHOWN_WITHIN_MS)
    page.screenshot(path=screenshots / "source.png")
