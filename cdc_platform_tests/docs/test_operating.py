"""Each check, sensor and failure has a page that says what to run and what not to, with messages the code has."""

import ast
import re
from pathlib import Path

import pytest

from cdc_platform.changelog.segments import SegmentLog
from cdc_platform.definitions import build_defs
from cdc_platform.deployment import Deployment
from cdc_platform.errors import InvariantError, UnavailableError
from cdc_platform.lake.spark import spark_session
from cdc_platform.source.doctor import inspect
from cdc_platform.source.postgres import source_engine
from cdc_platform_tests.docs.generate import REPOSITORY

OPERATING = REPOSITORY / "docs" / "operating"
PAGES = sorted(page for page in OPERATING.glob("*.md") if page.name != "README.md")
HEADINGS = ["What you see", "What it means", "What to run", "What not to run"]
_ERROR = re.compile(r"```text\n(.*?)```", re.DOTALL)
_LITERAL_CHARACTERS_MIN = 12  # Shorter ones would be found in any text.


def _automation() -> set[str]:
    repository = build_defs(Deployment.load(REPOSITORY)).get_repository_def()
    checks = {key.name for key in repository.asset_graph.asset_check_keys}
    return checks | {one.name for one in (*repository.sensor_defs, *repository.schedule_defs)}


def _literals() -> set[str]:
    """Every piece of text in the package's code."""
    found: set[str] = set()
    for file in (REPOSITORY / "cdc_platform").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return {text for text in found if len(text) >= _LITERAL_CHARACTERS_MIN}


def test_each_check_sensor_and_schedule_has_a_page() -> None:
    automation = _automation()
    assert {"row_count_matches", "merge_curated_sensor", "check_convergence_schedule"} <= automation
    assert automation <= {page.stem for page in PAGES}


def test_each_page_is_in_the_index() -> None:
    index = (OPERATING / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"({page.name})" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_says_what_to_run_and_what_not(page: Path) -> None:
    assert re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_quoted_message_is_one_of_the_code(page: Path) -> None:
    literals = _literals()
    for block in _ERROR.findall(page.read_text(encoding="utf-8")):
        for line in block.strip().splitlines():
            pieces = [text for text in literals if text.strip() in line]
            covered = sum(len(text.strip()) for text in pieces)
            assert covered >= len(line) / 4 or line.startswith("cdc.events."), line


def _quoted_errors(page: str) -> list[str]:
    text = (OPERATING / page).read_text(encoding="utf-8")
    return [line for block in _ERROR.findall(text) for line in block.strip().splitlines()]


def test_the_message_of_a_source_that_is_down_is_quoted() -> None:
    engine = source_engine("postgresql+psycopg://cdc:secret@127.0.0.1:1/shop")
    with pytest.raises(UnavailableError) as error:
        inspect(engine, {}, name="cdc_shop_shop", captured_lsn=None)
    shown = str(error.value).replace("127.0.0.1:1/", "db.example:5432/")
    assert _quoted_errors("source-down.md") == [shown]


def test_the_message_of_an_unreachable_spark_is_quoted() -> None:
    with pytest.raises(UnavailableError) as error, spark_session("sc://127.0.0.1:1"):
        pass
    shown = str(error.value).replace("127.0.0.1:1:", "127.0.0.1:15002:")
    assert _quoted_errors("spark-not-reachable.md") == [shown]


def test_the_message_of_a_log_that_was_cut_is_quoted(tmp_path: Path) -> None:
    (tmp_path / f"{60_000:020d}.jsonl").write_bytes(b"{}\n" * 27)
    with pytest.raises(InvariantError) as error:
        SegmentLog(tmp_path).read(60_100, bytes_max=1 << 20)
    shown = str(error.value).replace(str(tmp_path), "/srv/shop/.cdc-platform/changelog/orders")
    assert shown in _quoted_errors("half-written-segment.md")
