"""Every command line in the documentation, and in what the code tells an operator to run, exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cdc_platform.registry.load import load_registry
from cdc_platform_tests.docs import generate

DOCS = [generate.REPOSITORY / name for name in ("README.md", "CHANGELOG.md")]
DOCS += sorted((generate.REPOSITORY / "docs").rglob("*.md"))
CODE = sorted((generate.REPOSITORY / "cdc_platform").rglob("*.py"))
_QUOTED = re.compile(r"`+[^`]*?(cdc-platform [^`\n]*)`")
_LINE = re.compile(r"^\s*(?:\$ |[A-Z_]+=\S+ )*(cdc-platform [^\n#]*)", re.MULTILINE)
_MAKE = re.compile(r"`make ([a-z]+)|^\s*(?:\$ )?make ([a-z]+)", re.MULTILINE)
_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)
_YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def _existing(files: list[Path]) -> list[Path]:
    return [file for file in files if file.exists()]


def quoted_commands(text: str) -> Iterator[str]:
    """`cdc-platform ...` in backticks or on a line of its own in a code block."""
    yield from (match[1] for match in _QUOTED.finditer(text))
    for block in text.split("```")[1::2]:
        yield from (match[1] for match in _LINE.finditer(block))


def problem(line: str) -> str | None:
    """Why `cdc-platform ...` would be refused before it does anything; None when it would not."""
    words = shlex.split(line.replace("...", "").replace("…", ""))[1:]
    if "[OPTIONS]" in words or not words or words == ["--help"]:
        return None
    if words[0] == "--project":
        words = words[2:]
    if isinstance(generate.commands().get(words[0]), click.Group):  # Its member is part of the command's name.
        words = [" ".join(words[:2]), *words[2:]]
    command = generate.commands().get(words[0])
    if command is None:
        return f"no command `{words[0]}`"
    options = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
    unknown = [word for word in words[1:] if word.startswith("-") and word.split("=")[0] not in options]
    if unknown:
        return f"`{words[0]}` has no option {unknown[0]}"
    arguments = (p for p in command.params if isinstance(p, click.Argument))
    choices = [p.type.choices for p in arguments if isinstance(p.type, click.Choice)]
    named = [word for word in words[2:] if not word.startswith("-") and word.islower()]
    if choices and named and named[0] not in choices[0]:
        return f"`{words[0]}` does not take {named[0]}"
    return None


@pytest.mark.parametrize("file", _existing(DOCS), ids=lambda f: str(f.relative_to(generate.REPOSITORY)))
def test_a_quoted_command_exists(file: Path) -> None:
    for line in quoted_commands(file.read_text(encoding="utf-8")):
        assert problem(line) is None, f"`{line}`: {problem(line)}"


def test_a_command_that_an_error_tells_to_run_exists() -> None:
    found = [line for file in CODE for line in quoted_commands(file.read_text(encoding="utf-8"))]
    assert len(found) > 10
    for line in found:
        if "{" not in line and not line.startswith("cdc-platform service"):
            assert problem(line) is None, f"`{line}`: {problem(line)}"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("cdc-platform rebuild orders", "no command `rebuild`"),
        ("cdc-platform check orders --level keys", "`check` has no option --level"),
        ("cdc-platform dead-letters mend orders 5", "no command `dead-letters mend`"),
        ("cdc-platform dead-letters discard orders 5 --force", "`dead-letters discard` has no option --force"),
        ("cdc-platform maintain orders vacuum", "`maintain` does not take vacuum"),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, why: str) -> None:
    assert list(quoted_commands(f"Run `{line}` now")) == [line]
    assert list(quoted_commands(f"```sh\n$ {line}\n```")) == [line]
    assert problem(line) == why


@pytest.mark.parametrize("file", _existing(DOCS), ids=lambda f: str(f.relative_to(generate.REPOSITORY)))
def test_a_quoted_make_target_exists(file: Path) -> None:
    targets = set(_TARGET.findall((generate.REPOSITORY / "Makefile").read_text(encoding="utf-8")))
    text = file.read_text(encoding="utf-8")
    for match in _MAKE.finditer(text):
        assert (match[1] or match[2]) in targets, match[0].strip()


@pytest.mark.parametrize("file", _existing(DOCS), ids=lambda f: str(f.relative_to(generate.REPOSITORY)))
def test_a_whole_tables_yaml_in_the_docs_loads(file: Path, tmp_path: Path) -> None:
    for block in _YAML.findall(file.read_text(encoding="utf-8")):
        if block.startswith(("deployment:", "# tables.yaml")):
            (tmp_path / "tables.yaml").write_text(block)
            load_registry(tmp_path / "tables.yaml")


@pytest.mark.parametrize("file", _existing(DOCS), ids=lambda f: str(f.relative_to(generate.REPOSITORY)))
def test_a_link_to_a_file_leads_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
        assert (file.parent / target).exists(), target


def test_no_registry_address_is_in_the_docs() -> None:
    for file in _existing(DOCS):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"--index-url|--extra-index|pypi\.|/simple/|maven\.org|repo1\.", text), file
