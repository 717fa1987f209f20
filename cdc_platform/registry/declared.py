"""What every section of tables.yaml is made of: a strict model, durations, names.

Belongs here: the kinds of value that more than one module of the registry declares. Does not: any section.
Units: durations are `timedelta`, written `500ms`, `1s`, `5m`, `2h`, `14d` in YAML.
"""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a number and a unit: ms, s, m, h or d, for example 5m")
    return timedelta(seconds=float(match[1]) * _UNIT_S[match[2]])


Duration = Annotated[timedelta, BeforeValidator(_duration), Field(gt=timedelta(0))]
# Names become parts of slots, Iceberg tables, asset keys and run tags: the narrowest of their alphabets.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class Declared(BaseModel):
    """A section of tables.yaml: a key that it does not know is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)
