-- A bookshop with 60,025 orders. Deterministic: the same rows on every machine, but for the clock.
CREATE TABLE orders (
    order_id    bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status      text NOT NULL,
    total       numeric(12, 2) NOT NULL,
    note        text,
    placed_at   timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE order_items (
    order_id    bigint NOT NULL,
    line_no     int NOT NULL,
    title       text NOT NULL,
    format      text,
    quantity    int NOT NULL,
    unit_price  numeric(10, 2) NOT NULL,
    shipped_at  timestamptz,
    PRIMARY KEY (order_id, line_no)
);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE order_items REPLICA IDENTITY FULL;

INSERT INTO orders
SELECT i, 1 + i * 7919 % 5000, (ARRAY['placed', 'paid', 'packed', 'sent'])[1 + i % 4],
       (500 + i * 37 % 9500) / 100.0, CASE WHEN i % 10 = 0 THEN 'gift' END,
       timestamptz '2026-01-01 00:00+00' + i * interval '5 minutes', now()
FROM generate_series(1, 60025) AS i;

INSERT INTO order_items
SELECT i, line, 'Volume ' || (i * 31 + line) % 2000, (ARRAY['paperback', 'hardcover', 'e-book'])[1 + (i + line) % 4],
       1 + (i + line) % 3, (300 + (i * 13 + line) % 3700) / 100.0,
       CASE WHEN i % 4 = 3 THEN timestamptz '2026-01-02 00:00+00' + i * interval '5 minutes' END
FROM generate_series(1, 10000) AS i, generate_series(1, 2) AS line;
