"""A table's state as a few figures, and the source's state at a cut.

Belongs here: the figures (row count, sums of columns, rows per value of one column), the statement that reads
them, the transaction that reads them at the source.
Does not: comparing (`convergence`), marking a moment in the replication stream (`messages.py`).
Rule: state, WAL position and `pg_current_snapshot()` are read in one REPEATABLE READ transaction, so the snapshot says
exactly which transactions the state holds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from cdc_platform.errors import UnavailableError
from cdc_platform.source.postgres import address, connected

_XID_EPOCH = 1 << 32  # pg_current_snapshot has 64-bit ids, events the lower 32 bits.


@dataclass(frozen=True, slots=True)
class Measures:
    """Which columns are summed, and which one's values are counted."""

    sums: tuple[str, ...]
    distribution: str | None


@dataclass(frozen=True, slots=True)
class State:
    """`sums` by column, NULL counting as 0; `distribution` by value as text, None for NULL."""

    rows: int
    sums: Mapping[str, int]
    distribution: Mapping[str | None, int]

    @classmethod
    def of_groups(cls, measures: Measures, groups: Iterable[Mapping[str, Any]]) -> "State":
        """Add up the rows of `state_sql`."""
        rows, sums = 0, dict.fromkeys(measures.sums, 0)
        distribution: Counter[str | None] = Counter()
        for group in groups:
            rows += int(group["n"])
            for i, column in enumerate(measures.sums):
                sums[column] += int(group[f"sum_{i}"] or 0)
            if measures.distribution is not None:
                distribution[group["v"]] += int(group["n"])
        return cls(rows, sums, {value: n for value, n in distribution.items() if n})


def state_sql(measures: Measures, *, table: str, quote: str, as_text: str) -> str:
    """One row per value of the distribution column: `v`, `n`, `sum_<i>`; in PostgreSQL's or Spark's dialect.

    `quote` is the dialect's identifier quote, `as_text` its text type. Sums are exact: decimals, not floats.
    """

    def name(column: str) -> str:
        return quote + column.replace(quote, quote * 2) + quote

    sums = "".join(f", sum(CAST({name(c)} AS decimal(38, 0))) AS sum_{i}" for i, c in enumerate(measures.sums))
    if measures.distribution is None:
        return f"SELECT count(*) AS n{sums} FROM {table}"
    value = f"CAST({name(measures.distribution)} AS {as_text})"
    return f"SELECT {value} AS v, count(*) AS n{sums} FROM {table} GROUP BY {value}"


@dataclass(frozen=True, slots=True)
class Cut:
    """The source at one moment. `lsn` is a WAL byte position at or after it; transaction ids are 32-bit."""

    state: State
    lsn: int
    xmin: int  # Every transaction before it had ended.
    xmax: int  # No transaction from it on had.
    running: frozenset[int]  # Those between that had not.

    def holds(self, transaction_id: int) -> bool:
        """Whether the state contains what this committed transaction did."""
        if _precedes(transaction_id, self.xmin):
            return True
        return _precedes(transaction_id, self.xmax) and transaction_id not in self.running


def _precedes(a: int, b: int) -> bool:
    """PostgreSQL's order of 32-bit transaction ids: each has 2^31 before it and 2^31 after."""
    return (a - b) % _XID_EPOCH >= _XID_EPOCH // 2


def read_cut(engine: Engine, *, schema: str, table: str, measures: Measures) -> Cut:
    """Read the table's state and where in the source's history it stands."""
    quote = engine.dialect.identifier_preparer.quote
    name = f"{quote(schema)}.{quote(table)}"
    try:
        with connected(engine, isolation="REPEATABLE READ") as connection:
            rows = connection.execute(
                text(state_sql(measures, table=name, quote='"', as_text="text").replace(":", r"\:"))
            ).mappings()
            state = State.of_groups(measures, [dict(row) for row in rows])
            snapshot, lsn = connection.execute(
                text("SELECT pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint")
            ).one()
    except DBAPIError as error:
        raise UnavailableError(
            f"{schema}.{table} can't be read ({type(error.orig).__name__})",
            where=address(engine),
            action="Run `cdc-platform doctor`",
        ) from error
    xmin, xmax, running = snapshot.split(":")
    return Cut(
        state=state,
        lsn=int(lsn),
        xmin=int(xmin) % _XID_EPOCH,
        xmax=int(xmax) % _XID_EPOCH,
        running=frozenset(int(x) % _XID_EPOCH for x in running.split(",") if x),
    )
