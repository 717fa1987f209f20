"""Alerts on their way out: a file of lines, always, and a webhook where one is declared.

Belongs here: the shape of an alert, what was told last of each subject, delivery and its limits. Does not: what is an
alert (`alerts.py`). No dagster here.
Files, in the deployment's state folder: `alerts.jsonl` is for people and shippers; `alerts.state.json` is what this
module has to remember: through which event it has looked, what it told last, what waits for the webhook. The state is
written after the lines and before each next post, so a crash in between says something twice, with the same `id`, and
never loses it. A state that is not as written here is none: what is wrong now is told again. One process at a time:
whoever evaluates the sensor holds `alerts.lock`.
Bounds: two files of `_FILE_BYTES_MAX`; `_PENDING_MAX` alerts wait for a webhook that is dead, the oldest are dropped
and counted; an alert that the webhook refuses is given up after `_REFUSALS_MAX` posts and counted. A post ends within
`_POST_WITHIN_S` whatever the destination does, so that a tick ends before Dagster gives it up with the lock in its
hand. A URL is a secret: it is in no file and in no message.
"""

import fcntl
import json
import logging
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from cdc_platform.errors import UnavailableError

FILE = "alerts.jsonl"
_FILE_BYTES_MAX = 1 << 20
_PENDING_MAX = 1_000
_TOLD_MAX = 2_000  # Subjects that are not well.
_REFUSALS_MAX = 5
_POSTS_MAX = 20  # In a tick, and within:
_POST_FOR_S = 15.0
_ANSWER_WITHIN_S = 5.0  # To each request for bytes, and of all of a post:
_POST_WITHIN_S = 10.0
_POSTS_HUNG_MAX = 4  # Threads that a name server or a kernel holds; with so many no other is begun.
_LOCK_WITHIN_S = 20.0  # A tick of another takes _POST_FOR_S and _POST_WITHIN_S at most, and there is time to try again.
_LOOK_EVERY_S = 0.1
_TIME_MAX = 253_402_300_799.0  # 9999-12-31: no later time has a date.
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


def _dated(text: str) -> str:
    if text and datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without its zone is none")
    return text


def _identified(alert: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(alert.get("id"), str):
        raise ValueError("an alert without an id is none")
    return alert


_Count = Annotated[int, Field(ge=0)]
_EventId = Annotated[int, Field(ge=-1, le=2**63 - 1)]
_Time = Annotated[float, Field(ge=0, le=_TIME_MAX, allow_inf_nan=False)]
_Moment = Annotated[str, AfterValidator(_dated)]
_Waiting = Annotated[dict[str, Any], AfterValidator(_identified)]


@dataclass
class Delivery:
    """How the webhook fares."""

    failures: _Count = 0  # Posts in a row without success.
    refusals: _Count = 0  # Of the oldest alert that waits.
    given_up: _Count = 0  # Alerts, ever.
    given_up_at: _Moment = ""
    error: str = ""
    since: str = ""


@dataclass
class Memory:
    """What is kept from tick to tick."""

    event: _EventId = -1  # Storage id of the newest check event that was looked at; -1: none ever was.
    runs_after: _Time = 0.0  # Runs that ended before have been looked at.
    runs_seen: list[str] = field(default_factory=list[str])  # Of those that ended about then.
    told: dict[str, str] = field(default_factory=dict[str, str])  # State by subject, of those that are not `passed`.
    pending: list[_Waiting] = field(default_factory=list[dict[str, Any]])
    delivery: Delivery = field(default_factory=Delivery)


@dataclass
class _Stored(Memory):
    v: int = 0


_STORED = TypeAdapter(_Stored)


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
            ends = time.monotonic() + _LOCK_WITHIN_S
            while not _taken(lock.fileno()):
                if time.monotonic() > ends:
                    raise UnavailableError(
                        f"another evaluation of the sensor has held it for {_LOCK_WITHIN_S:.0f} s",
                        where=str(self._folder / "alerts.lock"),
                        action="The next tick tries again; if none succeeds, restart the Dagster services",
                    )
                time.sleep(_LOOK_EVERY_S)
            yield

    def memory(self) -> Memory:
        """What was written last; a fresh one when there is none, or none that can be read."""
        try:
            stored = _STORED.validate_json(self._state.read_bytes(), strict=True)
        except (FileNotFoundError, ValidationError):
            return Memory()
        if stored.v != _VERSION:
            return Memory()
        return Memory(stored.event, stored.runs_after, stored.runs_seen, stored.told, stored.pending, stored.delivery)

    def write(self, memory: Memory) -> None:
        """Keep `memory`."""
        while len(memory.told) > _TOLD_MAX:
            del memory.told[next(iter(memory.told))]
        fresh = self._state.with_suffix(".new")
        text = json.dumps({"v": _VERSION, **asdict(memory)}, ensure_ascii=False)
        fresh.write_bytes(text.encode(errors="replace"))  # A letter that is none (half a pair) could not be read again.
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

    def deliver(
        self,
        memory: Memory,
        url: str | None,
        *,
        log: logging.Logger,
        now: datetime,
        post_within_s: float = _POST_WITHIN_S,
    ) -> None:
        """Post what waits, oldest first. The first that gets no answer ends it for this tick; nothing raises."""
        ends = time.monotonic() + _POST_FOR_S
        for _ in range(_POSTS_MAX):
            if not memory.pending or time.monotonic() > ends:
                return
            error, refused = _post(url, memory.pending[0], within_s=post_within_s)
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


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_hung = threading.BoundedSemaphore(_POSTS_HUNG_MAX)


def _post(url: str | None, alert: Mapping[str, Any], *, within_s: float) -> tuple[str, bool]:
    """Post one alert; return what went wrong, and whether the destination refused this very alert. Never raises."""
    if not url or not url.startswith(("http://", "https://")):
        return "the webhook's environment variable holds no http:// or https:// address", False
    if not _hung.acquire(blocking=False):
        return f"no answer ({_POSTS_HUNG_MAX} earlier posts still hang)", False
    answers: SimpleQueue[tuple[str, bool]] = SimpleQueue()
    connections: list[HTTPConnection] = []

    def post() -> None:
        try:
            answers.put(_answer(url, alert, connections))
        finally:
            _hung.release()

    threading.Thread(target=post, name="cdc-alert", daemon=True).start()
    try:
        return answers.get(timeout=within_s)
    except Empty:
        for connection in connections:  # The timeout of a socket is for each read: bytes that drip never reach it.
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        return f"no whole answer within {within_s:.0f} s", False


def _answer(url: str, alert: Mapping[str, Any], connections: list[HTTPConnection]) -> tuple[str, bool]:
    body = json.dumps({"v": _VERSION, **alert}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": quote(str(alert["id"]), safe="/:,;=@+ ()[]")}
    opener = urllib.request.build_opener(_NoRedirect, _AtHand(connections))
    try:
        request = urllib.request.Request(url, body, headers)  # noqa: S310  The scheme was looked at.
        with opener.open(request, timeout=_ANSWER_WITHIN_S):
            return "", False
    except HTTPError as error:
        error.close()
        patient = error.code in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
        refused = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and not patient
        return f"it answers {error.code}", refused
    except URLError as error:
        return f"no answer ({type(error.reason).__name__})", False
    except Exception as error:  # What answers may be anything, and so may the address be, which its text may hold.
        return f"no answer ({type(error).__name__})", False


class _AtHand(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Keeps its connections at hand, to end them from outside."""

    def __init__(self, connections: list[HTTPConnection]) -> None:
        super().__init__()
        self._made = connections

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_kept(HTTPConnection, self._made), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_kept(HTTPSConnection, self._made), req)


def _kept(kind: type[HTTPConnection], connections: list[HTTPConnection]) -> Callable[..., HTTPConnection]:
    def connection(*args: Any, **kwargs: Any) -> HTTPConnection:
        made = kind(*args, **kwargs)
        connections.append(made)
        return made

    return connection
