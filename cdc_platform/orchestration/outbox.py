"""Alerts on their way out: a file of lines, always, and a webhook where one is declared.

Belongs here: the shape of an alert, what was told last of each subject, delivery and its limits. Does not: what is an
alert (`alerts.py`). No dagster here.
Files, in the deployment's state folder: `alerts.jsonl` is for people and shippers; `alerts.state.json` is what this
module has to remember: through which event it has looked, what it told last, what waits for the webhook. The state is
written after the lines and before each next post, so a crash in between says something twice, with the same `id`, and
never loses it. One process at a time: whoever evaluates the sensor holds `alerts.lock`.
Bounds: two files of `_FILE_BYTES_MAX`; `_PENDING_MAX` alerts wait for a webhook that is dead, the oldest are dropped
and counted; an alert that the webhook refuses is given up after `_REFUSALS_MAX` posts and counted. A URL is a secret:
it is in no file and in no message.
"""

import fcntl
import json
import logging
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError

FILE = "alerts.jsonl"
_FILE_BYTES_MAX = 1 << 20
_PENDING_MAX = 1_000
_TOLD_MAX = 2_000  # Subjects that are not well.
_REFUSALS_MAX = 5
_POSTS_MAX = 20  # In a tick, and within:
_POST_FOR_S = 15.0
_ANSWER_WITHIN_S = 5.0
_TROUBLE_AFTER = 3  # Posts in a row without success.
_VERSION = 1

Kind = Literal["check", "run"]
State = Literal["passed", "warning", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One change of state. The names are stable: they are the webhook's JSON (docs/operating/alerts_sensor.md)."""

    id: str  # The same whenever the same change is told again.
    at: str  # UTC, ISO 8601.
    deployment: str
    kind: Kind
    state: State
    was: State
    subject: str  # `<asset>:<check>`, or what a run was to do.
    asset: str
    check: str
    run_id: str
    owners: tuple[str, ...]
    message: str


@dataclass
class Delivery:
    """How the webhook fares."""

    failures: int = 0  # Posts in a row without success.
    refusals: int = 0  # Of the oldest alert that waits.
    given_up: int = 0  # Alerts, ever.
    given_up_at: str = ""
    error: str = ""
    since: str = ""


@dataclass
class Memory:
    """What is kept from tick to tick."""

    event: int = -1  # Storage id of the newest check event that was looked at; -1: none ever was.
    runs_after: float = 0.0  # Runs that ended before have been looked at.
    runs_seen: list[str] = field(default_factory=list[str])  # Of those that ended about then.
    told: dict[str, str] = field(default_factory=dict[str, str])  # State by subject, of those that are not `passed`.
    pending: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    delivery: Delivery = field(default_factory=Delivery)


class Outbox:
    """The files of one deployment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "alerts.state.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone: a tick that a person evaluates by hand waits for the daemon's."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "alerts.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def memory(self) -> Memory:
        """What was written last; a fresh one when there is none, or none that can be read."""
        try:
            stored = json.loads(self._state.read_text())
            if stored.pop("v") != _VERSION:
                return Memory()
            return Memory(**{**stored, "delivery": Delivery(**stored["delivery"])})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return Memory()

    def write(self, memory: Memory) -> None:
        """Keep `memory`."""
        while len(memory.told) > _TOLD_MAX:
            del memory.told[next(iter(memory.told))]
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps({"v": _VERSION, **asdict(memory)}))
        fresh.replace(self._state)

    def add(self, memory: Memory, alerts: list[Alert], *, webhook: bool, now: datetime) -> None:
        """Append alerts to the file and, for a webhook, to what waits for it."""
        if not alerts:
            return
        file = self._folder / FILE
        if file.exists() and file.stat().st_size > _FILE_BYTES_MAX:
            file.replace(file.with_name(f"{FILE}.1"))
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(asdict(alert)) + "\n" for alert in alerts)
            lines.flush()
            os.fsync(lines.fileno())
        if webhook:
            memory.pending += [asdict(alert) for alert in alerts]
        if (dropped := len(memory.pending) - _PENDING_MAX) > 0:
            del memory.pending[:dropped]
            _give_up(memory, dropped, now)

    def deliver(self, memory: Memory, url: str | None, *, log: logging.Logger, now: datetime) -> None:
        """Post what waits, oldest first. The first that gets no answer ends it for this tick; nothing raises."""
        ends = time.monotonic() + _POST_FOR_S
        for _ in range(_POSTS_MAX):
            if not memory.pending or time.monotonic() > ends:
                return
            error, refused = _post(url, memory.pending[0])
            delivery = memory.delivery
            if not error:
                del memory.pending[0]
                memory.delivery = Delivery(given_up=delivery.given_up, given_up_at=delivery.given_up_at)
                self.write(memory)
                continue
            delivery.failures += 1
            delivery.refusals += refused
            delivery.error, delivery.since = error, delivery.since or now.isoformat(timespec="seconds")
            log.warning(f"alert {memory.pending[0]['id']} was not delivered: {error}")
            if delivery.refusals < _REFUSALS_MAX:
                return
            log.error(f"alert {memory.pending[0]['id']} is given up after {delivery.refusals} posts; {FILE} has it")
            del memory.pending[0]
            delivery.refusals = 0
            _give_up(memory, 1, now)


def trouble(delivery: Delivery, pending: int) -> str:
    """What is wrong with delivery, empty while all is well or a post may just have been unlucky."""
    if delivery.failures < _TROUBLE_AFTER:
        return ""
    return (
        f"the webhook has taken no alert since {delivery.since} ({delivery.failures} posts, {pending} alerts wait, "
        f"{delivery.given_up} were given up): {delivery.error}"
    )


def _give_up(memory: Memory, alerts: int, now: datetime) -> None:
    memory.delivery.given_up += alerts
    memory.delivery.given_up_at = now.astimezone(UTC).isoformat(timespec="seconds")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without its body, which would look delivered."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(url: str | None, alert: Mapping[str, Any]) -> tuple[str, bool]:
    """Post one alert; return what went wrong, and whether the destination refused this very alert."""
    if not url or not url.startswith(("http://", "https://")):
        return "the webhook's environment variable holds no http:// or https:// address", False
    body = json.dumps({"v": _VERSION, **alert}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(alert["id"])}
    try:
        request = urllib.request.Request(url, body, headers)  # noqa: S310  The scheme was looked at.
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_ANSWER_WITHIN_S):
            return "", False
    except HTTPError as error:
        patient = error.code in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
        refused = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and not patient
        return f"it answers {error.code}", refused
    except URLError as error:
        return f"no answer ({type(error.reason).__name__})", False
    except (OSError, ValueError) as error:  # Its text may hold the address.
        return f"no answer ({type(error).__name__})", False
