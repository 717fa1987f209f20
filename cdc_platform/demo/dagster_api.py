"""Runs jobs and turns sensors as the UI does: over the webserver's GraphQL.

Belongs here: the few calls that the demo and the soak make. Does not: Dagster's libraries.
"""

import json
import time
import urllib.request
from typing import Any
from urllib.error import HTTPError, URLError

from cdc_platform.errors import LimitError, UnavailableError

_LOCATION = {"repositoryLocationName": "cdc_platform", "repositoryName": "__repository__"}
_RUN_WITHIN_S = 300
_POLL_S = 0.3
_DONE = {"SUCCESS", "FAILURE", "CANCELED"}


class DagsterApi:
    """The deployment's Dagster."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, job: str, *assets: str) -> str:
        """Run a job, on the named assets alone if given (`curated/orders`); return the run's id once it succeeded.

        Raises UnavailableError when it fails, LimitError when it takes longer than 300 s.
        """
        selection = [{"path": asset.split("/")} for asset in assets]
        answer = self._ask(
            "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename "
            "... on LaunchRunSuccess { run { runId } } ... on PythonError { message } "
            "... on RunConfigValidationInvalid { errors { message } } } }",
            p={
                "selector": {
                    **_LOCATION,
                    "jobName": job,
                    **({"assetSelection": selection, "assetCheckSelection": []} if selection else {}),
                },
                "runConfigData": {},
                "mode": "default",
            },
        )["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise UnavailableError(
                f"the run was refused ({answer['__typename']})",
                where=f"job {job}",
                action=f"Look at {self._url}",
            )
        run_id = str(answer["run"]["runId"])
        give_up = time.monotonic() + _RUN_WITHIN_S
        while (status := self._status(run_id)) not in _DONE:
            if time.monotonic() > give_up:
                raise LimitError(
                    f"not done after {_RUN_WITHIN_S} s",
                    where=f"run {run_id}",
                    action=f"Look at {self._url}/runs",
                )
            time.sleep(_POLL_S)
        if status != "SUCCESS":
            raise UnavailableError(
                f"the run ended as {status}", where=f"job {job}", action=f"Look at {self._url}/runs/{run_id}"
            )
        return run_id

    def checks_failed(self, run_id: str) -> tuple[list[str], int]:
        """Names of the asset checks that a run evaluated and that did not pass, and how many it evaluated."""
        answer = self._ask(
            "query($r: ID!) { logsForRun(runId: $r, limit: 1000) { ... on EventConnection { events { "
            "... on AssetCheckEvaluationEvent { evaluation { checkName assetKey { path } success } } } } } }",
            r=run_id,
        )
        evaluations = [e["evaluation"] for e in answer["logsForRun"]["events"] if "evaluation" in e]
        failed = [f"{'/'.join(e['assetKey']['path'])}:{e['checkName']}" for e in evaluations if not e["success"]]
        return failed, len(evaluations)

    def runs(self) -> dict[str, dict[str, int]]:
        """How many runs of each job there are, by status."""
        answer = self._ask("{ runsOrError { ... on Runs { results { jobName status } } } }")
        found: dict[str, dict[str, int]] = {}
        for run in answer["runsOrError"]["results"]:
            of_job = found.setdefault(run["jobName"], {})
            of_job[run["status"]] = of_job.get(run["status"], 0) + 1
        return found

    def runs_in_flight(self) -> int:
        """How many runs have not ended, those in the queue too."""
        return sum(n for of_job in self.runs().values() for status, n in of_job.items() if status not in _DONE)

    def turn_sensors(self, *, on: bool) -> None:
        """Start or stop every sensor, and the schedules."""
        found = self._ask(
            "query($s: RepositorySelector!) { repositoryOrError(repositorySelector: $s) { __typename "
            "... on Repository { sensors { name sensorState { id } } "
            "schedules { name scheduleState { id } } } } }",
            s=_LOCATION,
        )["repositoryOrError"]
        if found["__typename"] != "Repository":
            raise UnavailableError(
                f"the code location is not loaded ({found['__typename']})",
                where=self._url,
                action="Look at its UI",
            )
        for kind in ("sensor", "schedule"):
            for one in found[f"{kind}s"]:
                self._turn(kind, one["name"], one[f"{kind}State"]["id"], on=on)

    def _turn(self, kind: str, name: str, state_id: str, *, on: bool) -> None:
        selector = {**_LOCATION, f"{kind}Name": name}
        if on:
            start = {
                "sensor": "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }",
                "schedule": "mutation($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) { __typename } }",
            }
            self._ask(start[kind], s=selector)
        else:
            stop = {"sensor": "stopSensor", "schedule": "stopRunningSchedule"}
            self._ask(f"mutation($i: String) {{ {stop[kind]}(id: $i) {{ __typename }} }}", i=state_id)

    def _status(self, run_id: str) -> str:
        answer = self._ask("query($r: ID!) { runOrError(runId: $r) { ... on Run { status } } }", r=run_id)
        return str(answer["runOrError"].get("status"))

    def _ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(  # noqa: S310  The address is our own webserver's.
            f"{self._url}/graphql", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                answer = json.load(response)
        except HTTPError as error:
            raise UnavailableError(
                f"it refused a query ({error.read().decode(errors='replace')[:300]})",
                where=self._url,
                action="Look at the webserver's log: `cdc-platform logs webserver`",
            ) from error
        except URLError as error:
            raise UnavailableError(
                "the webserver does not answer", where=self._url, action="Look with `cdc-platform status`"
            ) from error
        if answer.get("errors"):
            raise UnavailableError(
                f"it refused a query ({answer['errors'][0]['message']})",
                where=self._url,
                action="Report this",
            )
        return answer["data"]
