import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_platform.stack import jdk


def _java(folder: Path, version: str) -> Path:
    """A program that tells its version as a JDK does."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '    java.home = {folder}' >&2\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("Error: could not find java", None),
    ],
)
def test_the_major_version_is_read(told: str, version: int | None) -> None:
    assert jdk.major_version(told) == version


def test_java_home_wins_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "17.0.1")))
    assert jdk.java_home() == str(tmp_path)


def test_an_old_java_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "11.0.2")))
    with pytest.raises(jdk.JdkError, match="is Java 11, and 17 or newer is needed"):
        jdk.java_home()


def test_without_java_the_script_prints_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", jdk.__file__],
        env={"PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "Java: no `java` on PATH. Install one with `apt-get install openjdk-17-jre-headless` "
        "(Debian, Ubuntu), or set JAVA_HOME to it.\n"
    )


def test_with_java_the_script_is_silent() -> None:
    done = subprocess.run([sys.executable, jdk.__file__], env=os.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
