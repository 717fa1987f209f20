"""Reads `tables.yaml` into the model; a wrong entry stops the load with file, line, path and remedy.

Belongs here: YAML, and how pydantic's findings read to an operator. Does not: what may be declared
(`registry/model.py`).
"""

import difflib
from collections.abc import Hashable
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from cdc_platform.errors import ConfigError
from cdc_platform.registry.model import Registry

_Path = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: YAML would keep the last and lose the first in silence."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        key: Hashable = loader.construct_object(key_node)  # pyright: ignore[reportUnknownMemberType]
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"`{key}` is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_registry(file: Path) -> Registry:
    """Return the registry in `file`; raise ConfigError that names the first wrong entry and counts the rest."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"can't be read ({error.strerror})",
            where=str(file),
            action="Run in the folder that holds tables.yaml, or name it with --project",
        ) from error
    try:
        declared = yaml.load(text, Loader=_Loader)  # noqa: S506  _Loader is a SafeLoader.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(
            f"not valid YAML: {error.problem}", where=f"{file}:{line}", action="Correct this line"
        ) from error
    try:
        return Registry.model_validate(declared)
    except ValidationError as error:
        findings = error.errors(include_url=False, include_context=False)
        # A misspelt key is also a missing one: the misspelling is what the operator sees in the file.
        first = next((f for f in findings if f["type"] == "extra_forbidden"), findings[0])
        path: _Path = tuple(part for part in first["loc"] if part != "[key]")
        more = f" ({len(findings) - 1} more in this file)" if len(findings) > 1 else ""
        raise ConfigError(
            f"{_what(first['type'], first['msg'])}{more}",
            where=f"{file}:{_line(node, path)}: {_dotted(path)}",
            action=_action(first["type"], path),
        ) from error


def _what(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "this key is not known"
    return message.removeprefix("Value error, ").rstrip(".")


def _action(kind: str, path: _Path) -> str:
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1])
        close = difflib.get_close_matches(str(path[-1]), known, n=1)
        hint = f"Did you mean `{close[0]}`?" if close else f"Known here: {', '.join(known)}"
        return f"Remove it or correct its spelling. {hint}".rstrip(".")
    if kind == "missing":
        return f"Add `{path[-1]}`"
    return "Correct this entry"


def _fields_at(path: _Path) -> list[str]:
    """Names that the model knows at `path`: walks models and the dicts that hold models."""
    model: type[BaseModel] = Registry
    walk = iter(path)
    for part in walk:
        annotation: Any = next(f.annotation for n, f in model.model_fields.items() if part in {n, f.alias})
        if get_origin(annotation) is dict:
            next(walk, None)  # The entry's own name.
        models = _models_in(annotation)
        if not models:
            return []
        model = models[0]
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models that `annotation` is or holds, however many `Annotated`, unions and dicts lie around them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inside: tuple[Any, ...] = get_args(annotation)
    return [model for inner in inside for model in _models_in(inner)]


def _dotted(path: _Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "(top level)"


def _line(node: yaml.Node | None, path: _Path) -> int:
    """Line of the deepest node on `path` that the file holds."""
    line = 1
    for part in path:
        child = None
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == str(part):
                    line, child = key_node.start_mark.line + 1, value_node
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
            line = child.start_mark.line + 1
        if child is None:
            break
        node = child
    return line
