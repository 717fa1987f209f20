"""Connections to a source, through SQLAlchemy Core on psycopg 3.

Belongs here: opening, timeouts, translating "no answer". Does not: the statements.
"""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from cdc_platform.errors import UnavailableError

_CONNECT_WITHIN_S = 5


def source_engine(url: str) -> Engine:
    """An engine that keeps no idle connection: the source has few to spare."""
    return create_engine(
        url,
        poolclass=NullPool,
        connect_args={"connect_timeout": _CONNECT_WITHIN_S, "application_name": "cdc_platform"},
    )


@contextmanager
def connected(engine: Engine, *, isolation: str = "READ COMMITTED") -> Generator[Connection]:
    """A connection in one transaction, rolled back at the end unless committed."""
    try:
        with engine.connect().execution_options(isolation_level=isolation) as connection:
            yield connection
    except OperationalError as error:
        raise UnavailableError(
            "the source does not answer",
            where=address(engine),
            action="Start it or correct its address, then this goes on by itself",
        ) from error


def address(engine: Engine) -> str:
    """Host, port and database, for messages: never the password."""
    url = make_url(engine.url)
    return f"postgresql://{url.host}:{url.port or 5432}/{url.database}"
