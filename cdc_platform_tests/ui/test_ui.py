"""Dagster's UI in a real Chromium, over a stack whose demo has run.

CDC_SCREENSHOTS names a folder for the pictures; docs/images/asset-graph.png is a copy of one.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from playwright.sync_api import Page, expect, sync_playwright

pytestmark = [pytest.mark.ui, pytest.mark.e2e]

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
GROUPS = ("source", "changelog", "landing", "curated", "maintenance")
SHOWN_WITHIN_MS = 20_000  # The first page compiles the whole UI on a busy machine.


class Stack(Protocol):
    """What the fixture `running_stack` gives."""

    webserver: str  # http://127.0.0.1:<port>


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CDC_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(running_stack: Stack) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(
            base_url=running_stack.webserver, viewport={"width": 1440, "height": 1020}, color_scheme="light"
        )
        page.set_default_timeout(SHOWN_WITHIN_MS)
        page.add_init_script("localStorage.setItem('dagster-nav-collapsed', 'true')")
        outside: list[str] = []
        page.on(
            "request",
            lambda r: None if r.url.startswith((running_stack.webserver, "data:", "blob:")) else outside.append(r.url),
        )
        yield page
        browser.close()
        assert outside == [], "the UI asks nobody but the stack"


def test_the_asset_graph_shows_the_tables_in_every_stage(page: Page, screenshots: Path) -> None:
    expanded = ",".join(f"global@global:{group}" for group in GROUPS)
    page.goto(f"/asset-groups?expanded={expanded}")
    for asset in ("landing/orders", "landing/order_items", "curated/orders", "curated/order_items"):
        expect(page.locator(f'a[href*="/assets/{asset}"]').first).to_be_visible(timeout=SHOWN_WITHIN_MS)
    page.locator("[aria-label=panel_show_right]").last.click()
    expect(page.get_by_text(re.compile(r"4 / 4 Passed")).first).to_be_visible(timeout=SHOWN_WITHIN_MS)
    page.screenshot(path=screenshots / "asset-graph.png")


def test_the_result_of_a_check_shows_on_the_curated_table(page: Page, screenshots: Path) -> None:
    page.goto("/assets/curated/orders?view=checks&checkDetail=row_count_matches")
    expect(page.get_by_text("As many rows as the source, at one cut.")).to_be_visible(timeout=SHOWN_WITHIN_MS)
    expect(page.get_by_text("Passed", exact=True)).to_be_visible()
    metadata = page.get_by_role("row").filter(has_text="outcome")
    expect(metadata).to_contain_text("converged")
    page.screenshot(path=screenshots / "check.png")


def test_the_columns_of_a_table_show_at_its_source(page: Page, screenshots: Path) -> None:
    page.goto("/assets/source/public/orders")
    expect(page.get_by_text("customer_id", exact=True)).to_be_visible(timeout=SHOWN_WITHIN_MS)
    page.screenshot(path=screenshots / "source.png")
