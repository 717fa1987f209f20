"""What happens in the bookshop: each function is one scene, committed at the source.

Belongs here: SQL of the application that the platform watches. Does not: what the platform makes of it.
"""

from importlib.resources import files

from sqlalchemy import Engine, text

from cdc_platform.source.postgres import connected

ORDERS = 60_025
BURST_UPDATES, BURST_INSERTS, BURST_DELETES = 1_000, 100, 50
CHURNED_ORDER = 4_711
ORDER_COLUMNS = "order_id, customer_id, status, total, note"
DELTA_UPDATES, DELTA_INSERTS, DELTA_DELETES = 200, 1, 10


def seed(engine: Engine) -> None:
    """Create the two tables and fill them."""
    _transaction(engine, files("cdc_platform.demo").joinpath("bookshop.sql").read_text("utf-8"))


def burst(engine: Engine) -> None:
    """One transaction: 1,000 orders are paid, 100 placed, 50 deleted."""
    _transaction(
        engine,
        f"""
        UPDATE orders SET status = 'paid', updated_at = now() WHERE order_id <= {BURST_UPDATES};
        INSERT INTO orders SELECT {ORDERS} + i, i, 'placed', 9.99, NULL, now(), now()
            FROM generate_series(1, {BURST_INSERTS}) AS i;
        DELETE FROM orders WHERE order_id > 20000 AND order_id <= 20000 + {BURST_DELETES};
        """,
    )


def churn(engine: Engine) -> None:
    """One order, seven transactions: five updates, a delete, the same key again."""
    for status in ("paid", "packed", "sent", "returned", "refunded"):
        _transaction(engine, f"UPDATE orders SET status = '{status}' WHERE order_id = {CHURNED_ORDER}")
    _transaction(engine, f"DELETE FROM orders WHERE order_id = {CHURNED_ORDER}")
    _transaction(
        engine,
        f"INSERT INTO orders VALUES ({CHURNED_ORDER}, 42, 'placed', 12.50, 'again', "
        "'2026-11-30 12:00:00+00', '2026-11-30 12:00:00+00')",
    )


def changes_for_a_delta(engine: Engine) -> None:
    """200 orders change inside the contract, one is new, 10 go; 500 change only outside the contract."""
    _transaction(
        engine,
        f"""
        UPDATE orders SET status = 'archived' WHERE order_id > 30000 AND order_id <= 30000 + {DELTA_UPDATES};
        INSERT INTO orders VALUES (90001, 7, 'placed', 5.00, NULL, now(), now());
        DELETE FROM orders WHERE order_id > 40000 AND order_id <= 40000 + {DELTA_DELETES};
        UPDATE orders SET note = 'read me', updated_at = now() WHERE order_id > 50000 AND order_id <= 50500;
        """,
    )


def order_row(engine: Engine, order_id: int) -> dict[str, object] | None:
    """One order as the source has it; times as microseconds since 1970, which every engine spells alike."""
    sql = f"SELECT {ORDER_COLUMNS}, (extract(epoch FROM placed_at) * 1000000)::bigint AS placed_at_us FROM orders"
    with connected(engine) as connection:
        found = connection.execute(text(f"{sql} WHERE order_id = :id"), {"id": order_id}).mappings().one_or_none()
        return dict(found) if found is not None else None


def _transaction(engine: Engine, sql: str) -> None:
    with connected(engine) as connection:
        connection.execution_options(no_parameters=True).exec_driver_sql(sql)
        connection.commit()
