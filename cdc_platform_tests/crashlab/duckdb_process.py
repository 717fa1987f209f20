"""DuckDB's side of `readers.DuckDB`: a path of table metadata on each line in, the table's rows as JSON out."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import duckdb


def main() -> None:
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):  # In this order: iceberg would fetch avro from the network.
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None and spec.origin is not None
        extension = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        connection.execute(f"LOAD '{extension}'")
    for path in sys.stdin:
        try:
            found = connection.execute("SELECT * FROM iceberg_scan(?)", [path.strip()])
            names = [column[0] for column in found.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
            answer: dict[str, object] = {"rows": rows}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
