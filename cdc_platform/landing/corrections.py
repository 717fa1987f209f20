"""A dead letter's record, corrected so that it can be applied, and what the sink would say of it.

Belongs here: what may be corrected, building the record, judging it before it is sent, and reading the sink's answer.
Does not: sending it (`source/messages.py`), the table of letters (`landing/dead_letters.py`), the sink's own judgement
(`landing/late.py`), which is asked here and passed again when the record arrives.
Rules: a replay may not undo newer data, so a record keeps its place in the source's order, and what was too late is not
sent again. It has the columns that the log's newest marker names: a record with others would stop the table. It is
judged before it is sent, for one that fails leaves a second letter and stands in the way of the next.
Messages name columns and offsets, never a value.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

from cdc_platform.changelog.log import ChangeLog, is_marker
from cdc_platform.errors import CdcError, ConfigError
from cdc_platform.landing.dead_letters import StoredLetter
from cdc_platform.landing.events import OFFSET, Decoder
from cdc_platform.landing.late import sift
from cdc_platform.source.types import SourceColumn, home

# applies, stale, unfit, sent_before: judged, nothing was sent; refused: it may not be sent at all.
# sent; then replayed, stale, dead, dropped: what the sink said; unknown: it has not said anything yet.
Outcome = Literal[
    "applies", "stale", "unfit", "sent_before", "refused", "sent", "replayed", "dead", "dropped", "unknown", "discarded"
]
DONE: frozenset[Outcome] = frozenset({"applies", "sent", "replayed", "discarded"})
_LOOK_BACK_RECORDS_MAX = 1_000
_LOOK_BACK_BYTES_MAX = 4 << 20
_Refused = Callable[[str, str], ConfigError]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became, or would become, of one letter."""

    log_offset: int
    reason: str  # The letter's.
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Correction:
    """What a person wants otherwise: values by column, or a record in place of one that can't be read."""

    values: Mapping[str, object]
    record: Mapping[str, object] | None = None  # With the kind's field, `before` and `after`.


NO_CORRECTION = Correction({})


def parse_json(text: str) -> Any:
    """Read JSON without rounding: a number keeps its digits. Raises ValueError."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_float=Decimal, parse_constant=refuse)


def replay_of(payload: str) -> int | None:
    """Offset of the letter that a record replays, None for one of the source's own."""
    try:
        return int(json.loads(payload)["replay"]["offset"])
    except (ValueError, KeyError, TypeError):
        return None


def corrected(
    letter: StoredLetter,
    correction: Correction,
    *,
    log: ChangeLog,
    columns: Sequence[SourceColumn],
    key: Sequence[str],
    kind_field: str,
    where: str,
) -> dict[str, object]:
    """Return the record that replays a letter, in the columns that the log has now.

    Raises ConfigError when it may not be replayed, or not so.
    """

    def refused(what: str, action: str) -> ConfigError:
        return ConfigError(what, where=f"{where}, letter {letter.log_offset}", action=action)

    _may_be_replayed(letter, refused)
    now = tuple(columns)
    event = _envelope(letter.payload)
    if correction.record is not None:
        placed = event or _place_before(log, letter.log_offset)
        event = _given(correction.record, placed, kind_field, refused)
    elif event is None:
        raise refused(
            "its payload is no record of a row, so there is nothing to correct",
            "Give the whole record: `--record` with the change's kind, `before` and `after`",
        )
    changed = dict(correction.values)
    if unknown := sorted(changed.keys() - {c.name for c in now}):
        raise refused(f"the table has no column `{unknown[0]}`", f"Use some of: {', '.join(c.name for c in now)}")
    if letter.reason != "no_key" and (keys := sorted(changed.keys() & set(key))):
        raise refused(
            f"`{keys[0]}` is a key column: another key is another row",
            "Correct other columns; the right row comes with its next change at the source",
        )
    then = [SourceColumn(**c) for c in log.columns_at(letter.log_offset)]
    side = "after" if isinstance(event.get("after"), dict) else "before"
    images: dict[str, object] = {}
    for image in ("before", "after"):
        row = event.get(image)
        if not isinstance(row, dict):
            images[image] = row
            continue
        carried = _carried(row, then, now)
        if image == side:
            carried |= {c.name: _spelled(c, changed[c.name], refused) for c in now if c.name in changed}
        if image == "after" and (untold := [c.name for c in now if c.name not in carried]):
            raise refused(
                f"the table has since got the column `{untold[0]}`, which the letter does not tell",
                f"Say what it holds: --set {untold[0]}=JSON",
            )
        images[image] = {c.name: carried.get(c.name) for c in now}
    return {**event, **images, "replay": {"offset": letter.log_offset}}


def _may_be_replayed(letter: StoredLetter, refused: _Refused) -> None:
    if letter.reason == "stale":
        raise refused(
            "it is stale: a newer change of its key had come before it, and landing has that one",
            "Discard it; if the row is wrong, correct it at the source",
        )
    if (of := replay_of(letter.payload)) is not None:
        raise refused(f"it is itself a replay, of letter {of}", f"Discard it, and replay {of} if that is open")


def _envelope(payload: str) -> dict[str, Any] | None:
    """A payload as an envelope that holds an image of a row; None when it is none."""
    try:
        event = json.loads(payload)
    except ValueError:
        return None
    if not isinstance(event, dict) or not any(isinstance(event.get(i), dict) for i in ("before", "after")):
        return None
    return event


def _given(
    record: Mapping[str, object], placed: dict[str, Any] | None, kind_field: str, refused: _Refused
) -> dict[str, Any]:
    """A record that a person wrote, where `placed` stands in the source's order."""
    if extra := sorted(record.keys() - {kind_field, "before", "after"}):
        raise refused(
            f"`--record` holds `{extra[0]}`", f"Give `{kind_field}`, `before` and `after`; the rest is the letter's"
        )
    if not record.get(kind_field) or not any(isinstance(record.get(i), dict) for i in ("before", "after")):
        raise refused(
            f"`--record` has no `{kind_field}`, or neither `before` nor `after`",
            f'For a row as it should be: --record \'{{"{kind_field}": "u", "before": null, "after": {{...}}}}\'',
        )
    if placed is None:
        raise refused(
            "nothing before it in the log says where it stands in the source's order",
            "Change the row at the source: its next change lands",
        )
    own = {"before": record.get("before"), "after": record.get("after"), kind_field: record[kind_field]}
    return {**own, **{part: placed.get(part) for part in ("source", "transaction")}}


def _place_before(log: ChangeLog, offset: int) -> dict[str, Any] | None:
    """The nearest record before `offset` that has a source position: what can't be read came right after it."""
    start = max(0, offset - _LOOK_BACK_RECORDS_MAX)
    nearest: dict[str, Any] | None = None
    while start < offset:  # Bounded: each turn reads at least one record.
        batch = log.another().read(start, bytes_max=_LOOK_BACK_BYTES_MAX)
        if not batch.lines:
            break
        for line in batch.lines.splitlines()[: offset - start]:
            event = None if is_marker(line) else _envelope(line.decode(errors="replace"))
            if event is not None and isinstance(event.get("source"), dict):
                nearest = event
        start = batch.end
    return nearest


def _carried(row: Mapping[str, Any], then: Iterable[SourceColumn], now: Iterable[SourceColumn]) -> dict[str, Any]:
    """A row under the names that its columns have now."""
    names = {c.number: c.name for c in then if c.number}
    was = {c.name: names.get(c.number, c.name) if c.number else c.name for c in now}
    return {name: row[before] for name, before in was.items() if before in row}


def _spelled(column: SourceColumn, value: object, refused: _Refused) -> object:
    """A value as the change log spells it: numbers, dates and times may be given as PostgreSQL writes them."""
    found = home(column.type)
    spelling = found.spelling if found else "text"
    try:
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            if spelling == "decimal":
                return str(value)
            return float(value) if isinstance(value, Decimal) else value
        if spelling == "days" and isinstance(value, str):
            return (date.fromisoformat(value) - _EPOCH.date()).days
        if spelling == "micros" and isinstance(value, str):
            since = datetime.fromisoformat(value).replace(tzinfo=UTC) - _EPOCH
            return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds
        if spelling == "instant" and isinstance(value, str):
            at = datetime.fromisoformat(value)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
            return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError as error:
        raise refused(
            f"the value given for `{column.name}` is no {column.type}", "Write it as PostgreSQL does, in quotes"
        ) from error
    return value


def judged(records: Mapping[int, Mapping[str, object]], *, decoder: Decoder, log: ChangeLog) -> dict[int, Answer]:
    """What the sink would say of these records, by the offset of their letters, if they came next in the log."""
    if not records:
        return {}
    end = log.end()
    lines = b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in records.values())
    decoded = decoder.decode(lines, first_offset=end)
    floor = log.newest_load()
    sifted = sift(decoded, lines, None, decoder=decoder, log=log.another(), floor=floor, strict=False)
    rejected = {r.offset: r for r in sifted.rejected}
    changes = set(decoded.changes[OFFSET].to_pylist())
    answers: dict[int, Answer] = {}
    for at, letter in enumerate(records, end):
        if (one := rejected.get(at)) is not None:
            outcome: Outcome = "stale" if one.reason == "stale" else "unfit"
            answers[letter] = Answer(letter, "", outcome, one.detail or one.reason)
        elif at in sifted.replayed:
            answers[letter] = Answer(letter, "", "applies")
        elif at in changes:
            why = "this very change stands in the log already, after the letter: the sink would drop it as sent again"
            answers[letter] = Answer(letter, "", "sent_before", why)
        else:
            answers[letter] = Answer(letter, "", "unfit", "it changes no row")
    return answers


def refusal(letter: StoredLetter, error: CdcError) -> Answer:
    """A letter that may not be replayed, as an answer."""
    return Answer(letter.log_offset, letter.reason, "refused", f"{error.what}. {error.action}")


def found_in(log: ChangeLog, start: int, wanted: set[int]) -> tuple[dict[int, int], int]:
    """Where replays of these letters stand in the log from `start` on, by letter, and how far was read."""
    found: dict[int, int] = {}
    end = log.end()
    while start < end:  # Bounded by `end`: each turn reads at least one record.
        batch = log.read(start, bytes_max=_LOOK_BACK_BYTES_MAX)
        if not batch.lines:
            break
        if b'"replay":{"offset":' in batch.lines:
            for at, line in enumerate(batch.lines.splitlines(), batch.start):
                if b'"replay":{"offset":' in line and (of := replay_of(line.decode(errors="replace"))) in wanted:
                    found.setdefault(of, at)
        start = batch.end
    return found, start


def answer(letter: StoredLetter, at: int, rows: Iterable[StoredLetter], *, where: str) -> Answer:
    """What the sink said of a replay that stands at `at` of the log and that it has passed."""
    for row in rows:
        if row.log_id != letter.log_id or row.log_offset != at:
            continue
        if row.closes == letter.log_offset:
            return Answer(letter.log_offset, letter.reason, "replayed", f"applied from change-log record {at}")
        outcome: Outcome = "stale" if row.reason == "stale" else "dead"
        why = (
            f"{row.detail or row.reason}. Both letters are open, {letter.log_offset} and {at}: discarding the first "
            f"discards both. If the row is wrong, correct it at the source ({where})"
        )
        return Answer(letter.log_offset, letter.reason, outcome, why)
    why = (
        f"the sink took change-log record {at} for one sent again. Correct the row at the source: its next change lands"
    )
    return Answer(letter.log_offset, letter.reason, "dropped", why)
