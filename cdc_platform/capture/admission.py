"""Which tables of a source are captured, and what is said of those that lack something.

Belongs here: that choice, of what the doctor found. Does not: looking (`source/doctor.py`), acting on it
(`capture/service.py`).
Rules: a lack of the server, the slot or the publication stops the whole source; a table's stops that table alone. One
that is captured already stays so while its log stays whole and true (`Finding.log_stays_true`): the sink stops it by
itself where landing can't follow, and nothing has to be loaded again. Any other is left out of the connector and of the
publication. What happens to it then is in no log, so its log says that, and it is loaded anew once nothing is lacking.
Where no table is left, the source is stopped as a whole: its slot keeps the WAL, and nothing has to be loaded anew.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cdc_platform.source.doctor import Finding


@dataclass(frozen=True, slots=True)
class Admission:
    """`captured` in the order of tables.yaml; `problems` by table, of captured ones and of those `left_out`."""

    captured: tuple[str, ...]
    left_out: tuple[str, ...]
    problems: Mapping[str, str]


def admit(tables: Iterable[str], findings: Iterable[Finding], *, streaming: Collection[str]) -> Admission:
    """Choose. `streaming` are the tables whose log holds everything so far: a whole load, and what came after it.

    Raises the first finding as ConfigError where it concerns the whole source, or leaves no table to capture.
    """
    found = list(findings)
    for one in found:
        if one.table is None:
            raise one.as_error()
    lacking = by_table(found)
    left_out = tuple(t for t in tables if t in lacking and not _stays(t, lacking[t], streaming))
    captured = tuple(t for t in tables if t not in left_out)
    if not captured and found:
        raise found[0].as_error()
    told = {t: left_out_problem(f) if t in left_out else captured_problem(f) for t, f in lacking.items()}
    return Admission(captured, left_out, told)


def by_table(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """The findings of each table that has some."""
    found: dict[str, list[Finding]] = {}
    for one in findings:
        if one.table is not None:
            found.setdefault(one.table, []).append(one)
    return found


def _stays(table: str, findings: Iterable[Finding], streaming: Collection[str]) -> bool:
    return table in streaming and all(one.log_stays_true for one in findings)


def left_out_problem(findings: Iterable[Finding]) -> str:
    """What is told of a table that is not captured."""
    return _told(findings, "; this table alone is not captured until then", ". It is then loaded anew by itself")


def captured_problem(findings: Iterable[Finding]) -> str:
    """What is told of a table that is captured all the same."""
    found = list(findings)
    going = "" if all(one.log_stays_true for one in found) else "; capture leaves this table out from its next start on"
    return _told(found, going, "")


def _told(findings: Iterable[Finding], meanwhile: str, then: str) -> str:
    return " ".join(f"{one.where}: {one.what}{meanwhile}. {one.action}{then}." for one in findings)
