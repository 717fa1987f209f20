"""`cdc-platform dead-letters` on a real catalog and log, without a source: everything but the sending."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cdc_platform.cli import main
from cdc_platform_tests.builders import event
from cdc_platform_tests.landing.test_letters import LETTER, Desk

LISTED = [
    *("log_offset", "reason", "op", "key", "source_position", "source_ts", "dead_at", "window", "log_id", "detail"),
    "closes",
]


class Project:
    """A project whose table `orders` has the letter of `Desk`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tables.yaml").write_text(
            "deployment: shop\nsources: {shop: {postgres: {embedded: shop}}}\n"
            'tables: {orders: {source: shop.public.orders, key: [id], owners: ["team:orders"]}}\n'
        )
        state = folder / ".cdc-platform"
        (state / "changelog").mkdir(parents=True)
        self.desk = Desk(state)
        (state / "changelog" / "orders").symlink_to(state / "log")

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["--project", str(self.folder), "dead-letters", *arguments])

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_list_has_the_documented_keys_and_show_alone_the_payload(project: Project) -> None:
    [listed] = project.json("list", "orders")
    assert list(listed) == LISTED
    assert (listed["log_offset"], listed["reason"], listed["key"], listed["closes"]) == (
        LETTER,
        "no_home",
        '{"id": 1}',
        None,
    )
    assert "NAN" not in project.run("list", "orders").output
    [shown] = project.json("show", "orders", str(LETTER))
    assert list(shown) == [*LISTED, "payload"]
    assert json.loads(shown["payload"])["after"]["total"] == "NAN"
    assert '"total": "NAN"' in project.run("show", "orders", str(LETTER)).output
    assert project.json("list", "orders", "--reason", "stale") == []


def test_results_are_on_stdout_and_hints_are_not(project: Project) -> None:
    done = project.run("list", "orders")
    assert len(done.stdout.splitlines()) == 1
    assert "1 open. `cdc-platform dead-letters show orders OFFSET`" in done.stderr


def test_a_dry_run_answers_by_its_exit_code(project: Project) -> None:
    would = project.json("replay", "orders", str(LETTER), "--set", "total=1.5", "--dry-run")
    letter = {"log_offset": LETTER, "reason": "no_home", "outcome": "applies", "why": ""}
    assert would == {"dry_run": True, "letters": [letter]}
    unfit = project.json("replay", "orders", str(LETTER), "--dry-run", code=2)
    assert unfit["letters"][0]["outcome"] == "unfit"


def test_all_is_a_dry_run_without_yes(project: Project) -> None:
    """With it, there would be somebody to send to."""
    chosen = ("replay", "orders", "--all", "--reason", "no_home", "--set", "total=1")
    assert project.json(*chosen)["dry_run"]
    sent = project.run(*chosen, "--yes")
    assert sent.exit_code == 4
    assert "no address of `postgres`" in sent.stderr


def test_discard_is_a_dry_run_without_yes_and_then_closes(project: Project) -> None:
    assert project.json("discard", "orders", str(LETTER))["dry_run"]
    assert len(project.json("list", "orders")) == 1
    done = project.json("discard", "orders", str(LETTER), "--yes")
    assert [x["outcome"] for x in done["letters"]] == ["discarded"]
    assert project.json("list", "orders") == []
    closed = project.json("list", "orders", "--closed")
    assert [(x["reason"], x["closes"]) for x in closed] == [("no_home", None), ("discarded", LETTER)]
    again = project.run("discard", "orders", str(LETTER), "--yes")
    assert (again.exit_code, "no open letter is at 5" in again.stderr) == (2, True)
    assert project.json("show", "orders", str(LETTER))[0]["log_offset"] == LETTER


def test_a_person_closes_letters_while_the_sink_adds_others(project: Project) -> None:
    project.desk.write(event("c", None, lsn=50))
    project.json("discard", "orders", str(LETTER), "--yes")
    project.desk.sinking.catch_up()
    assert [x["reason"] for x in project.json("list", "orders")] == ["no_key"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "orders"), "name OFFSETs, or --all"),
        (("discard", "orders", "5", "--all"), "name OFFSETs, or --all"),
        (("replay", "orders", "5", "--reason", "no_home"), "--reason goes with --all"),
        (("replay", "orders", "5", "--set", "total"), "write COLUMN=JSON"),
        (("replay", "orders", "5", "--set", "status=secret"), "is no JSON"),
        (("replay", "orders", "5", "--set", "total=NaN"), "is no JSON"),
        (("replay", "orders", "5", "6", "--record", "{}"), "--record is for one OFFSET"),
        (("show", "orders", "77"), "no letter of `orders` is at 77"),
        (("list", "nothing"), "table `nothing` is not declared"),
    ],
)
def test_what_is_not_understood_is_a_usage_error_and_names_no_value(
    project: Project, arguments: tuple[str, ...], says: str
) -> None:
    done = project.run(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "secret" not in done.output
