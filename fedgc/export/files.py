"""Tables as files: CSV by the standard library, Parquet by pyarrow.

A file is written atomically; an existing one is never replaced.
"""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fedgc.errors import Unusable, system_errors
from fedgc.export.rows import Column, Table
from fedgc.files import whole

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # with these begin the formulas of spreadsheets


def write_csv(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write each table as a file with its name."""
    return [_csv(table, folder / f"{table.name}.csv") for table in _all_free(tables, folder, "csv")]


def write_parquet(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write each table as a file with its name, one row group for each part."""
    return [
        _parquet(table, folder / f"{table.name}.parquet") for table in _all_free(tables, folder, "parquet")
    ]


def _all_free(tables: Sequence[Table], folder: Path, ending: str) -> Sequence[Table]:
    for table in tables:
        path = folder / f"{table.name}.{ending}"
        if path.exists():
            raise Unusable(f"{path}: saw a file there, needed a folder without it")
    return tables


def _csv(table: Table, path: Path) -> Path:
    with _whole(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow([column.name for column in table.columns])
        for part in table.parts:
            writer.writerows([_inert(cell) for cell in row] for row in part)
    return path


def _inert(cell: object) -> object:
    """Return a cell with which a spreadsheet computes nothing: clients choose their names.

    >>> _inert("=1+1"), _inert("north"), _inert(-1.5)
    ("'=1+1", 'north', -1.5)
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _parquet(table: Table, path: Path) -> Path:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise Unusable(f"export parquet: saw no pyarrow ({error}), needed it: pip install pyarrow") from error
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(column.name, kinds[column.kind]) for column in table.columns])
    with _whole(path) as unfinished, parquet.ParquetWriter(unfinished, schema) as writer:
        for part in table.parts:
            columns = _turned(part, table.columns)
            writer.write_table(
                pa.table(
                    [pa.array(one, kind) for one, kind in zip(columns, schema.types, strict=True)],
                    schema=schema,
                )
            )
    return path


def _turned(part: Sequence[Sequence[Any]], columns: Sequence[Column]) -> list[Sequence[Any]]:
    return [list(column) for column in zip(*part, strict=True)] if part else [[] for _ in columns]


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    with system_errors(f"{path}", "to write it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as unfinished:
            yield unfinished
