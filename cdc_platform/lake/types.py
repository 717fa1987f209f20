"""Iceberg's types by their text: which may become which, and PyIceberg's values of them.

Belongs here: rules of Iceberg's own. Does not: which type a source's column gets (`source/types.py`).
Rules: Iceberg v2 lets int become long, float double, and a decimal one of more digits and the same scale (spec, "Schema
Evolution"). PyIceberg's own rule lets text become binary, too, which the specification does not.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import re
from typing import Any

_WIDER = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")


def promotes(found: str, wanted: str) -> bool:
    """Whether a column of one type may become the other and keep its values."""
    if (found, wanted) in _WIDER:
        return True
    was, becomes = _DECIMAL.fullmatch(found), _DECIMAL.fullmatch(wanted)
    return was is not None and becomes is not None and was[2] == becomes[2] and int(was[1]) <= int(becomes[1])


def pyiceberg_type(text: str, element_id: int = -1) -> Any:
    """PyIceberg's type; it reads every type from its own text but a list's, whose element has an id."""
    from pydantic import TypeAdapter
    from pyiceberg.types import IcebergType, ListType

    if text.startswith("list<"):
        return ListType(element_id=element_id, element=pyiceberg_type(text[5:-1]), element_required=False)
    return TypeAdapter(IcebergType).validate_python(text)
