"""The source's rows and a stage's, compared one by one, and a writer that goes on in the background."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from cdc_platform.errors import UnavailableError
from cdc_platform.operations import Operations
from cdc_platform.source.postgres import connected

_ROWS = "order_id, customer_id, status, CAST(total AS {text}) AS total, note"


def source_rows(operations: Operations) -> dict[int, tuple[Any, ...]]:
    with connected(operations.engine("orders")) as connection:
        rows = connection.execute(text(f"SELECT {_ROWS.format(text='text')} FROM orders"))
        return {row[0]: tuple(row) for row in rows}


def stage_rows(operations: Operations, table: str) -> dict[int, tuple[Any, ...]]:
    with operations.spark() as spark:
        rows = [tuple(r.values()) for r in spark.rows(f"SELECT {_ROWS.format(text='string')} FROM lake.{table}")]
    assert len({r[0] for r in rows}) == len(rows), "a key stands twice"
    return {r[0]: r for r in rows}


def execute(operations: Operations, sql: str) -> None:
    with connected(operations.engine("orders")) as connection:
        connection.execution_options(no_parameters=True).exec_driver_sql(sql)
        connection.commit()


def until(true: Callable[[], bool], what: str, *, within_s: float = 120) -> None:
    give_up = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < give_up, what
        time.sleep(0.2)


@contextmanager
def writing(operations: Operations, *, every_s: float = 0.05) -> Generator[None]:
    """Small transactions, one after another: updates, inserts and deletes. A source that is down is waited for."""
    ending = threading.Event()
    failures: list[Exception] = []

    def write() -> None:
        n = 0
        while not ending.is_set():
            n += 1
            try:
                execute(
                    operations,
                    f"UPDATE orders SET status = 'w{n % 5}' WHERE order_id % 997 = {n % 997};"
                    f"DELETE FROM orders WHERE order_id = {3 * n};"
                    f"INSERT INTO orders VALUES ({time.time_ns()}, 1, 'new', 1, NULL, now(), now())",
                )
            except (UnavailableError, OperationalError):
                time.sleep(0.2)
            except Exception as error:
                failures.append(error)
                return
            time.sleep(every_s)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert failures == []
