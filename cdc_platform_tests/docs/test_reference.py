"""docs/reference/ is what the code says, and leaves nothing out."""

import pytest
from pydantic import BaseModel

from cdc_platform.registry import model
from cdc_platform_tests.docs import generate


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    stored = (generate.REFERENCE / name).read_text(encoding="utf-8")
    assert stored == generate.PAGES[name](), "stale: run python -m cdc_platform_tests.docs.generate"


@pytest.mark.parametrize("name", generate.commands())
def test_a_command_has_help_for_itself_and_each_option(name: str) -> None:
    command = generate.commands()[name]
    assert command.help
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), f"{name} {parameter.opts[-1]}"
    takes_json = any("--json" in parameter.opts for parameter in command.params)
    section = generate.cli().split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert not takes_json or "JSON" in section or "{" in section  # The keys, or where they are named.


def test_the_command_line_page_holds_each_command_and_no_service() -> None:
    page = generate.cli()
    for name in generate.commands():
        assert f"\n## {name}\n" in page
    assert "## service" not in page
    for code in ("0 done or yes", "2 usage or configuration", "3 diverged", "4 unavailable"):
        assert code in page


def test_each_key_of_tables_yaml_is_on_its_page() -> None:
    page = generate.tables()
    models = [
        found
        for found in vars(model).values()
        if isinstance(found, type) and issubclass(found, BaseModel) and found.model_fields
    ]
    assert model.Registry in models
    for one in models:
        for key in one.model_fields:
            assert f"| `{key}` |" in page, f"{one.__name__}.{key}"


def test_each_metadata_key_in_the_code_is_on_its_page() -> None:
    page = generate.metadata_keys()
    written = generate.keys_written()
    assert "cdc.log-position" in written
    for key in written:
        assert f"`{key}" in page, key
    for kind in generate.event_kinds():
        assert f"`cdc.events.{kind}`" in page, kind
