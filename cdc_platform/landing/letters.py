"""What an operator does with the dead letters of one table: choose, replay, wait for the sink's word, discard.

Belongs here: the order of these steps. Does not: the rules of a correction (`landing/corrections.py`), the table of
letters (`landing/dead_letters.py`), how a record gets into the log (`send`).
Rules: nothing is sent unless it would be applied now. The sink judges it once more when it arrives, for the row may
have changed meanwhile; only its word says that a letter landed. Letters that are named are sent all or none; of *all*
letters those are sent that would be applied. Waiting ends at a bound, with *unknown*.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_platform.changelog.log import ChangeLog
from cdc_platform.errors import ConfigError
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.corrections import (
    NO_CORRECTION,
    Answer,
    Correction,
    answer,
    corrected,
    found_in,
    judged,
    refusal,
    replay_of,
)
from cdc_platform.landing.dead_letters import DeadLetters, StoredLetter, stored
from cdc_platform.landing.events import Decoder
from cdc_platform.landing.position import landing_position, landing_table
from cdc_platform.registry.model import Table
from cdc_platform.source.types import SourceColumn

_ASKED_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """Open letters: these, or all, or all of one reason."""

    offsets: tuple[int, ...] = ()
    reason: str = ""


class OpenLetters:
    """The open letters of one table. Not shared between threads."""

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        lake: Lake,
        log: ChangeLog,
        send: Callable[[Mapping[str, object]], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name = name
        self._table = table
        self._lake = lake
        self._log = log
        self._send = send
        self._clock = clock
        self._sleep = sleep
        self._letters = DeadLetters(lake, landing_table(name))

    def replay(
        self, choice: Choice, correction: Correction = NO_CORRECTION, *, dry_run: bool, wait_s: float | None = None
    ) -> list[Answer]:
        """Send the chosen letters, corrected, and return what became of each, or would become.

        Without `wait_s` a letter that was sent is `sent`; with it, what the sink said, or `unknown` after that time.
        Raises ConfigError when a letter is not open, UnavailableError when a side gives no answer.
        """
        letters, others = self._of_this_log(self.chosen(choice))
        records, answers = self._judged(letters, correction)
        refused = [refusal(x, _of_another_log(x, self._letters.name)) for x in others]
        if dry_run or (choice.offsets and (refused or any(a.outcome != "applies" for a in answers.values()))):
            return [*refused, *answers.values()]
        start = self._log.end()
        sent: dict[int, StoredLetter] = {}
        for letter in letters:
            if answers[letter.log_offset].outcome == "applies":
                self._send(records[letter.log_offset])
                sent[letter.log_offset] = letter
                answers[letter.log_offset] = Answer(letter.log_offset, letter.reason, "sent")
        if wait_s is not None:
            answers |= self._awaited(sent, start, wait_s)
        return [*refused, *answers.values()]

    def discard(self, choice: Choice, *, dry_run: bool) -> list[Answer]:
        """Close the chosen letters, with the replays of them that failed; return each."""
        chosen = {(x.log_id, x.log_offset): x for x in self.chosen(choice)}
        for letter in stored(self._letters.read()):  # In the log's order: a replay comes after what it replays.
            of = replay_of(letter.payload)
            if of is not None and (letter.log_id, of) in chosen:
                chosen.setdefault((letter.log_id, letter.log_offset), letter)
        if not dry_run:
            for log_id in sorted({log_id for log_id, _ in chosen}):
                offsets = [offset for of_log, offset in chosen if of_log == log_id]
                self._letters.close(offsets, reason="discarded", log_id=log_id)
        return [Answer(x.log_offset, x.reason, "discarded", x.detail) for x in chosen.values()]

    def chosen(self, choice: Choice) -> list[StoredLetter]:
        """The letters, oldest first; of this log, where another log has one of the same offset."""
        letters = stored(self._letters.read())
        if not choice.offsets:
            return [x for x in letters if not choice.reason or x.reason == choice.reason]
        identity = self._log.identity()
        by_offset = {x.log_offset: x for x in sorted(letters, key=lambda x: x.log_id == identity)}
        if missing := sorted({*choice.offsets} - by_offset.keys()):
            raise ConfigError(
                f"no open letter is at {', '.join(map(str, missing))}",
                where=self._letters.name,
                action=f"`cdc-platform dead-letters list {self._name}` shows the open ones, with `--closed` those too "
                "that were replayed or discarded",
            )
        return [by_offset[offset] for offset in sorted({*choice.offsets})]

    def _of_this_log(self, letters: Sequence[StoredLetter]) -> tuple[list[StoredLetter], list[StoredLetter]]:
        """Letters of this log, and those of a log that it has taken the place of: their offsets mean nothing here."""
        identity = self._log.identity()
        return [x for x in letters if x.log_id == identity], [x for x in letters if x.log_id != identity]

    def _judged(
        self, letters: Sequence[StoredLetter], correction: Correction
    ) -> tuple[dict[int, dict[str, object]], dict[int, Answer]]:
        """The records to send and what the sink would say of each letter now."""
        landing = self._table.landing
        columns = [SourceColumn(**c) for c in self._log.columns_at(self._log.end())]
        records: dict[int, dict[str, object]] = {}
        answers: dict[int, Answer] = {}
        for letter in letters:
            try:
                records[letter.log_offset] = corrected(
                    letter,
                    correction,
                    log=self._log,
                    columns=columns,
                    key=self._table.key,
                    kind_field=landing.change_type.column,
                    where=self._letters.name,
                )
            except ConfigError as error:
                answers[letter.log_offset] = refusal(letter, error)
        decoder = Decoder(
            landing_table(self._name),
            columns,
            self._table.key,
            types=landing.types,
            kind_field=landing.change_type.column,
            kinds=landing.change_type.map,
        )
        answers |= judged(records, decoder=decoder, log=self._log)
        return records, {x.log_offset: replace(answers[x.log_offset], reason=x.reason) for x in letters}

    def _awaited(self, sent: Mapping[int, StoredLetter], start: int, within_s: float) -> dict[int, Answer]:
        log, identity = self._log.another(), self._log.identity()
        give_up = self._clock() + within_s
        stands_at: dict[int, int] = {}
        answers: dict[int, Answer] = {}
        while len(answers) < len(sent):  # Bounded by `within_s`.
            arrived, start = found_in(log, start, sent.keys() - stands_at.keys())
            stands_at |= arrived
            history = self._lake.history(landing_table(self._name))
            position = landing_position(history) if history else None
            passed = [
                offset
                for offset, at in stands_at.items()
                if offset not in answers and position and position.log_id == identity and position.log > at
            ]
            if passed:
                rows = stored(self._letters.read(closed=True, payload=False))
                where = f"{self._table.source_schema}.{self._table.source_table}"
                answers |= {x: answer(sent[x], stands_at[x], rows, where=where) for x in passed}
            elif self._clock() > give_up:
                for offset in sent.keys() - answers.keys():
                    waited = "the sink has not passed it" if offset in stands_at else "capture has not written it"
                    why = f"after {within_s:.0f} s {waited}; it is sent and may land yet: do not send it again"
                    answers[offset] = Answer(offset, sent[offset].reason, "unknown", why)
            else:
                self._sleep(_ASKED_EVERY_S)
        return answers


def _of_another_log(letter: StoredLetter, where: str) -> ConfigError:
    return ConfigError(
        "it is of a change log that this one has taken the place of",
        where=f"{where}, letter {letter.log_offset}",
        action="Discard it: the load that began this log brought the row as it was then",
    )
