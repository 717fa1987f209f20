"""A small run of the lab, the same each time; and the lab fails when the sink's safeguards are off."""

import pytest

from cdc_platform_tests.crashlab.__main__ import main

SMALL = ("--seed", "7", "--capture", "0", "--readers", "duckdb", "--plain")


def run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """Exit code, last line, and all that was printed."""
    code = main([*SMALL, *options])
    printed = capsys.readouterr().out
    return code, printed.splitlines()[-1], printed


def test_nothing_is_lost_doubled_or_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    code, last, printed = run(capsys, "--faults", "20")
    assert (code, last) == (0, "faults 20 lost 0 doubled 0 wrong 0"), printed


@pytest.mark.parametrize("switch", ["redelivery-filter", "token"])
def test_without_a_safeguard_the_lab_fails(capsys: pytest.CaptureFixture[str], switch: str) -> None:
    """On the histories of the run above: a lab that could not fail would prove nothing."""
    code, last, printed = run(capsys, "--faults", "20", "--without", switch)
    words = last.split()
    assert (code, words[:2]) == (5, ["faults", "20"]), printed
    assert int(words[3]) + int(words[5]) + int(words[7]) > 0


def test_one_history_can_be_run_again_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, last, printed = run(capsys, "--faults", "15", "--history", "1")
    assert (code, last) == (0, "faults 3 lost 0 doubled 0 wrong 0"), printed


@pytest.mark.parametrize("option", ["--kinds", "--readers", "--without"])
def test_a_word_that_the_lab_does_not_know_is_refused(option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, "meteor"])
    assert ended.value.code == 2
