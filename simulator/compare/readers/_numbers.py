"""Numbers out of JSON objects and CSV columns that others wrote; what is none is named with file, line and key."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulator.errors import InputError, nearest
from simulator.trace import Floats

NAN = float("nan")


def number(record: Mapping[str, Any], key: str, path: Path, line: int | None = None) -> float:
    """The value at `key` as float; NaN where there is none, or where it is not finite (a statistic of nothing)."""
    value = record.get(key)
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"should be a number, not {shown(value)}", path=path, line=line, key=key)
    try:
        return float(value) if math.isfinite(value) else NAN
    except OverflowError:
        raise InputError("the number is too large", path=path, line=line, key=key) from None


def numbers(values: Any, path: Path, line: int | None, key: str) -> Floats:
    """A JSON array of finite numbers."""
    if not isinstance(values, list):
        raise InputError(f"should be an array of numbers, not {shown(values)}", path=path, line=line, key=key)
    for index, value in enumerate(values):
        sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        if not sound:
            raise InputError(
                f"should be a finite number, not {shown(value)}", path=path, line=line, key=f"{key}[{index}]"
            )
    return np.array(values, dtype=np.float64)


def mapping(value: Any, path: Path, line: int | None, key: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"should be an object, not {shown(value)}", path=path, line=line, key=key)
    return value


def shown(value: Any) -> str:
    """The value in a few characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def csv_columns(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Floats]:
    """Columns of numbers in a CSV by name, empty cells NaN; optional ones only if they are there.

    Raises InputError for a file that cannot be read, a missing column (with the nearest), a cell that is no number and
    a file without rows.
    """
    table = csv_table(path)
    for name in required:
        if name not in table.columns:
            raise InputError(f'no column "{name}"; {nearest(name, table.columns, "columns")}', path=path, line=1)
    if not len(table):
        raise InputError("no rows", path=path)
    return {name: _column(table[name], name, path) for name in [*required, *optional] if name in table.columns}


def csv_table(path: Path) -> pd.DataFrame:
    """A CSV as texts."""
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"cannot be read as CSV: {reason}", path=path) from None


def _column(cells: "pd.Series[str]", name: str, path: Path) -> Floats:
    values = np.asarray(pd.to_numeric(cells, errors="coerce"), dtype=np.float64)
    wrong = ~np.isfinite(values) & (cells.to_numpy() != "")
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{shown(cells.iloc[row])} is not a finite number", path=path, line=row + 2, key=name)
    return values
