"""The story: what the platform makes of a bookshop's changes, scene by scene, with the figures it measured.

Belongs here: the scenes, what each claims, and telling them in one screen. Does not: services
(`demo/commands.py` starts them), the bookshop's SQL.
A scene is told when its claims hold; one that does not is told too, and the story ends as untrue.
Merges, rewrites and checks run as Dagster runs, so that the UI shows what the story says.
"""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cdc_platform.changelog.log import LOAD_BEGIN, LOAD_END
from cdc_platform.demo import bookshop
from cdc_platform.demo.dagster_api import DagsterApi
from cdc_platform.hops.delta import changed_rows
from cdc_platform.lake.spark import quoted
from cdc_platform.operations import Operations, Stage

if TYPE_CHECKING:
    import pandas as pd

    from cdc_platform.convergence.converge import Verdict

_REPLAYED = "landing.orders_replayed"


@dataclass
class Story:
    """Tells the scenes in order. `figures` holds every measured value, for `--json` and the benchmarks."""

    operations: Operations
    dagster: DagsterApi
    console: Console
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    untrue: list[str] = field(default_factory=list[str])

    def tell(self, *, loading_since: float) -> bool:
        """Tell everything; `loading_since` is when capture was started, on the monotonic clock."""
        self._initial_load(loading_since)
        self._burst()
        self._churn()
        self._replay()
        self._rewrite()
        self._merges()
        self._checks()
        return not self.untrue

    def _initial_load(self, since: float) -> None:
        with self._scene("Initial load"):
            verdicts = [self._converged(name, "landing") for name in self.operations.deployment.registry.tables]
            took_s = time.monotonic() - since
            orders = self._landing("orders")
            rows = {n: self._landing(n).rows for n in self.operations.deployment.registry.tables}
            rows_per_s = sum(rows.values()) / self._load_s()
            self.figures |= {
                "initial_load_s": took_s,
                "initial_load_rows": sum(rows.values()),
                "initial_load_rows_per_s": rows_per_s,
            }
            self._say(
                all(verdicts) and orders.rows == bookshop.ORDERS,
                f"{orders.rows:,} orders and {rows['order_items']:,} items captured and landed, equal to the source "
                f"[b]{took_s:.1f} s[/b] after capture's start ({rows_per_s:,.0f} rows/s); orders: "
                f"{_files(orders.data_files, orders.delete_files)}, {orders.equality_deletes} equality deletes",
            )

    def _burst(self) -> None:
        with self._scene("Burst"):
            bookshop.burst(self.operations.engine("orders"))
            verdict = self.operations.converge("orders", "landing")
            files = self._landing("orders")
            self.figures["burst_s"] = verdict.took_s
            expected = bookshop.ORDERS + bookshop.BURST_INSERTS - bookshop.BURST_DELETES
            self._say(
                verdict.outcome == "converged" and files.rows == expected,
                f"one transaction of {bookshop.BURST_UPDATES:,} updates, {bookshop.BURST_INSERTS} inserts, "
                f"{bookshop.BURST_DELETES} deletes: {verdict.outcome} in [b]{verdict.took_s:.1f} s[/b], "
                f"{files.rows:,} rows; {_files(files.data_files, files.delete_files)}, "
                f"{files.equality_deletes:,} equality deletes",
            )

    def _churn(self) -> None:
        with self._scene("Churn"):
            engine = self.operations.engine("orders")
            bookshop.churn(engine)
            verdict = self.operations.converge("orders", "landing")
            self.figures["churn_s"] = verdict.took_s
            source = bookshop.order_row(engine, bookshop.CHURNED_ORDER) or {}
            with self.operations.spark() as spark:
                rows = spark.rows(
                    f"SELECT {bookshop.ORDER_COLUMNS}, unix_micros(placed_at) AS placed_at_us "
                    f"FROM {self._name('landing.orders')} WHERE order_id = {bookshop.CHURNED_ORDER}"
                )
            landed = rows[0] if len(rows) == 1 else {}
            self._say(
                verdict.outcome == "converged" and source == landed != {},
                f"order {bookshop.CHURNED_ORDER}: five updates, a delete, the same key again: {verdict.outcome} in "
                f"[b]{verdict.took_s:.1f} s[/b]\n  source  {_row(source)}\n  landing {_row(landed)}",
            )

    def _replay(self) -> None:
        with self._scene("Replay"):
            began = time.monotonic()
            position, apart = self.operations.replay("orders", into=_REPLAYED)
            took_s = time.monotonic() - began
            self.operations.lake.catalog.drop_table(_REPLAYED)
            self.figures["replay_s"] = took_s
            self._say(
                (apart.only_left, apart.only_right) == (0, 0),
                f"{position.log:,} change-log records into a second table, compared row by row in "
                f"[b]{took_s:.1f} s[/b]: EXCEPT one way {apart.only_left}, the other way {apart.only_right}",
            )

    def _rewrite(self) -> None:
        with self._scene("Rewrite"):
            before = self._landing("orders")
            self.dagster.run("rewrite_data_files", "maintenance/rewrite_data_files/landing/orders")
            after = self._landing("orders")
            self.figures |= {
                "files_opened_before": before.opened,
                "files_opened_after": after.opened,
            }
            self._say(
                after.delete_files == 0 and after.rows == before.rows and after.opened < before.opened,
                f"rewrite_data_files: {_files(before.data_files, before.delete_files)} with "
                f"{before.equality_deletes:,} equality deletes became "
                f"{_files(after.data_files, after.delete_files)}; count(*) opened "
                f"[b]{before.opened} files, now {after.opened}[/b]"
                + (" (metadata answers)" if after.opened == 0 else ""),
            )

    def _merges(self) -> None:
        curated = self._name("curated.orders")
        with self._scene("First MERGE"):
            self.dagster.run("merge_curated")
            watermark = self._watermark()
            with self.operations.spark() as spark:
                before = changed_rows(spark, curated, 0)
            equal = self._converged("orders", "curated") and self._converged("order_items", "curated")
            self._say(
                equal,
                f"{len(before):,} curated orders, equal to the source; the reader's watermark is {watermark}",
            )
        with self._scene("Second MERGE"):
            bookshop.changes_for_a_delta(self.operations.engine("orders"))
            landed = self._converged("orders", "landing")
            self.dagster.run("merge_curated", "curated/orders")
            equal = landed and self._converged("orders", "curated")
            with self.operations.spark() as spark:
                delta, after = changed_rows(spark, curated, watermark), changed_rows(spark, curated, 0)
            moved = _moved_row_ids(before, after)
            expected = bookshop.DELTA_UPDATES + bookshop.DELTA_INSERTS
            self.figures |= {"delta_rows": len(delta), "row_ids_moved": moved}
            self._say(
                equal and len(delta) == expected and moved == 0,
                f"{bookshop.DELTA_UPDATES} orders changed in the contract, {bookshop.DELTA_INSERTS} new, "
                f"{bookshop.DELTA_DELETES} deleted, 500 changed outside it: [b]{len(delta)} rows after watermark "
                f"{watermark}[/b], which is now {self._watermark()}; _row_id moved in {moved} of {len(after):,} rows",
            )

    def _checks(self) -> None:
        with self._scene("Checks"):
            self.dagster.turn_sensors(on=True)  # A check of its own says so when one is off.
            failed, total = self.dagster.checks_failed(self.dagster.run("check_convergence"))
            self._say(
                total > 0 and not failed,
                f"{total - len(failed)} of {total} asset checks passed in Dagster"
                + (f"; failed: {', '.join(failed)}" if failed else ""),
            )

    def _converged(self, name: str, stage: Stage) -> bool:
        verdict: Verdict = self.operations.converge(name, stage)
        if verdict.outcome != "converged":
            self.console.print(f"[red]{stage}.{name}: {verdict.outcome}: {verdict.reason}[/red]")
        return verdict.outcome == "converged"

    def _load_s(self) -> float:
        """Seconds from the first load marker to the last, over all tables."""
        times: list[int] = []
        for name in self.operations.deployment.registry.tables:
            log, position = self.operations.changelog(name), 0
            while (batch := log.read(position, bytes_max=1 << 20)).lines:  # Bounded by the log.
                first = batch.lines[: batch.lines.find(b"\n")]
                if first.startswith((f'{{"op":"{LOAD_BEGIN}'.encode(), f'{{"op":"{LOAD_END}'.encode())):
                    times.append(json.loads(first)["ts_ms"])
                position = batch.end
        return max((max(times) - min(times)) / 1000, 0.001)

    def _watermark(self) -> int:
        history = self.operations.curated("orders")
        return history.head.sequence_number if history and history.head else 0

    def _landing(self, name: str) -> "_Landing":
        state = self.operations.health(name, "landing")
        assert state is not None, "the initial load has landed"
        with self.operations.spark() as spark:
            [counted], opened = spark.rows_and_files(f"SELECT count(*) AS n FROM {self._name(state.table)}")
        return _Landing(int(counted["n"]), state.data_files, state.delete_files, state.equality_deletes, opened.total)

    def _name(self, table: str) -> str:
        return quoted(self.operations.lake.name, *table.split("."))

    @contextmanager
    def _scene(self, title: str) -> Generator[None]:
        """Show the scene's name while it plays."""
        self._title = title
        with self.console.status(f"{title} ..."):
            yield

    def _say(self, holds: bool, text: str) -> None:
        mark = "[green]✓[/green]" if holds else "[red]✗[/red]"
        self.console.print(f"{mark} [bold]{self._title}[/bold]: {text}", highlight=False, soft_wrap=False)
        if not holds:
            self.untrue.append(self._title)


@dataclass(frozen=True, slots=True)
class _Landing:
    """A landing table as its metadata has it, and what `count(*)` had to open."""

    rows: int
    data_files: int
    delete_files: int
    equality_deletes: int
    opened: int


def _files(data: int, deletes: int) -> str:
    return f"{data} data and {deletes} delete file{'' if deletes == 1 else 's'}"


def _row(row: dict[str, Any]) -> str:
    shown = ("order_id", "customer_id", "status", "total", "note")
    return ", ".join(f"{column} {row.get(column)}" for column in shown)


def _moved_row_ids(before: "pd.DataFrame", after: "pd.DataFrame") -> int:
    """Rows that both states have, with another `_row_id` in the second."""
    both = before.merge(after, on="order_id", suffixes=("_before", "_after"))
    return int((both["_row_id_before"] != both["_row_id_after"]).sum())
