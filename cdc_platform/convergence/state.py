"""How a state differs from another, and how changes of rows move it.

Belongs here: arithmetic on `source.state.State`. Does not: reading one.
The figures are additive: a row's contribution can be added and taken away, which is what lets a state be
carried from one point of the change log to another (`convergence/cut.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cdc_platform.source.state import Measures, State


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure in which a stage differs from what the source says it should be."""

    measure: str  # `rows`, `sum(<column>)` or `<column>=<value>`.
    expected: int
    found: int


def differences(expected: State, found: State) -> tuple[Difference, ...]:
    """Every figure that differs; none when the states are equal."""
    pairs: list[tuple[str, int, int]] = [("rows", expected.rows, found.rows)]
    pairs += [(f"sum({c})", expected.sums[c], found.sums[c]) for c in expected.sums]
    values = sorted({*expected.distribution, *found.distribution}, key=lambda v: (v is not None, v or ""))
    pairs += [
        (
            f"value={'NULL' if v is None else repr(v)}",
            expected.distribution.get(v, 0),
            found.distribution.get(v, 0),
        )
        for v in values
    ]
    return tuple(Difference(measure, a, b) for measure, a, b in pairs if a != b)


def moved(measures: Measures, state: State, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> State:
    """Add (`+1`) or take away (`-1`) the contribution of each row, a mapping of column to value."""
    count, sums, distribution = state.rows, dict(state.sums), Counter(state.distribution)
    for sign, row in rows:
        count += sign
        for column in measures.sums:
            sums[column] += sign * int(row[column] or 0)
        if measures.distribution is not None:
            value = row[measures.distribution]
            distribution[None if value is None else _as_text(value)] += sign
    return State(count, sums, {value: n for value, n in distribution.items() if n})


def _as_text(value: object) -> str:
    """As both databases cast it to text: booleans are the one JSON value that Python spells differently."""
    return str(value).lower() if isinstance(value, bool) else str(value)
