"""The rows of a CSV trace: read at once by pandas if nothing is unusual, else row by row to say what is wrong where.

Both ways give the same table. The first is tried on text whose every line has the right number of unquoted
fields, so that rows and lines correspond.
"""

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulator.errors import InputError, nearest
from simulator.formats._columns import Column, Fault
from simulator.formats._source import Source
from simulator.trace import Ints

_BLANK = "blank"

csv.field_size_limit(2**31 - 1)  # by default 128 KiB, less than the block ids of a prompt of a million tokens


@dataclass(frozen=True)
class Table:
    """Columns by name (those the file has), the line each row begins on, and what was mended."""

    source: Source
    columns: dict[str, Any]
    lines: Ints
    notes: tuple[str, ...] = ()

    def take(self, rows: NDArray[np.intp]) -> "Table":
        """The same table with its rows in the given order."""
        columns = {
            name: column[rows] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
            for name, column in self.columns.items()
        }
        return replace(self, columns=columns, lines=self.lines[rows])

    def fault(self, message: str, row: int, key: str) -> InputError:
        """An error at a row of this table."""
        return InputError(message, path=self.source.path, line=int(self.lines[row]), key=key)


def header_names(head: str) -> list[str]:
    """The column names of a header line, without surrounding blanks."""
    return [name.strip() for name in next(csv.reader([head]), [])]


def check_header(source: Source, columns: Sequence[Column], format_name: str) -> list[Column]:
    """The columns of the file in its own order; InputError for one that is unknown, doubled or missing."""
    known = {column.name: column for column in columns}
    names = header_names(source.head)

    def fault(message: str, key: str) -> InputError:
        return InputError(message, path=source.path, line=source.head_line, key=key[:60])

    for position, name in enumerate(names):
        if name not in known:
            raise fault(
                f"unknown column; {nearest(name[:60], known, f'columns of a {format_name} trace')}", name
            )
        if name in names[:position]:
            raise fault("the column is there twice; remove one", name)
    for column in columns:
        if column.required and column.name not in names:
            raise fault(f"the column is missing; the header has {','.join(names)}", column.name)
    return [known[name] for name in names]


def read_table(source: Source, columns: Sequence[Column], format_name: str, repair: bool) -> Table:
    """The rows of a CSV trace in file order; `repair` leaves out those that cannot run and counts them in the notes."""
    ordered = check_header(source, columns, format_name)
    table = _read_at_once(source, ordered) or _read_rows(source, ordered, repair)
    if not len(table.lines):
        left = f"no request is left ({', '.join(table.notes)})" if table.notes else "there is no request"
        raise InputError(f"{left}; a trace has a row for each request", path=source.path)
    return table


def _read_at_once(source: Source, columns: list[Column]) -> Table | None:
    """The table of a file with nothing unusual in it, or None."""
    body = source.body.rstrip(b"\r\n")
    if source.head_line > 1 or not body or not _regular(body, len(columns)):
        return None
    try:
        frame = pd.read_csv(
            io.BytesIO(body),
            header=None,
            index_col=False,
            names=[column.name for column in columns],
            dtype={column.name: column.dtype for column in columns},
            na_filter=False,
            quoting=csv.QUOTE_NONE,
            float_precision="round_trip",
            low_memory=False,
        )
        values = {column.name: column.convert(frame[column.name].to_numpy()) for column in columns}
    except (ValueError, OverflowError):  # includes pandas' own parser errors
        return None
    return Table(source, values, np.arange(len(frame), dtype=np.int64) + source.head_line + 1)


def _regular(body: bytes, width: int) -> bool:
    """Whether every line has `width` fields, none quoted: no blank line, no line end within a row."""
    if b'"' in body or body.count(b"\r") != body.count(b"\r\n"):
        return False
    letters = np.frombuffer(body, np.uint8)
    line_ends = np.append(np.flatnonzero(letters == ord("\n")), len(body))
    commas_before = np.searchsorted(np.flatnonzero(letters == ord(",")), line_ends)
    return width > 1 and bool((np.diff(commas_before, prepend=0) == width - 1).all())


def _read_rows(source: Source, columns: list[Column], repair: bool) -> Table:
    """The table read field by field; InputError at the first line that is wrong."""
    kept: list[list[Any]] = []
    lines: list[int] = []
    omitted: dict[str, list[int]] = {}
    for line, fields in _rows(source):
        row = _row(source, line, columns, fields, repair) if fields else _BLANK
        if isinstance(row, str):
            omitted.setdefault(row, []).append(line)
        else:
            kept.append(row)
            lines.append(line)
    values = zip(*kept, strict=True) if kept else itertools.repeat((), len(columns))
    packed = {column.name: column.pack(list(each)) for column, each in zip(columns, values, strict=True)}
    return Table(source, packed, np.array(lines, dtype=np.int64), _notes(omitted))


def _rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line it begins on; blank lines before the last row are rows without fields."""
    blank = list(range(1, source.head_line))
    end = source.head_line
    reader = csv.reader(io.StringIO(source.body.decode(), newline=""), strict=True)
    try:
        for fields in reader:
            line, end = end + 1, source.head_line + reader.line_num
            if not fields or (len(fields) == 1 and not fields[0].strip()):
                blank.append(line)
                continue
            yield from ((skipped, []) for skipped in blank)
            blank.clear()
            yield line, fields
    except csv.Error as error:
        message = f"the quotes in this row do not match ({error}); correct it"
        raise InputError(message, path=source.path, line=end + 1) from error


def _row(
    source: Source, line: int, columns: list[Column], fields: list[str], repair: bool
) -> list[Any] | str:
    """The values of a row, or why a repair drops it; InputError if it is wrong and stays so."""
    if len(fields) != len(columns):
        count = f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {len(columns)}"
        names = ",".join(column.name for column in columns)
        raise InputError(f"{count} ({names}); correct the row", path=source.path, line=line)
    values: list[Any] = []
    faults: list[InputError] = []
    reason = ""
    for column, field in zip(columns, fields, strict=True):
        try:
            values.append(column.parse(field))
        except Fault as fault:
            error = InputError(str(fault), path=source.path, line=line, key=column.name)
            if fault.droppable is None:  # comes before what could be mended
                raise error from fault
            faults.append(error)
            reason = reason or fault.droppable
    if faults and not repair:
        raise faults[0]
    return reason or values


def _notes(omitted: dict[str, list[int]]) -> tuple[str, ...]:
    """What was left out, counted."""
    return tuple(
        f"skipped {counted(lines, 'blank line')}"
        if reason == _BLANK
        else f"dropped {counted(lines, 'row', reason)}"
        for reason, lines in omitted.items()
    )


def counted(lines: Sequence[int], noun: str, reason: str = "") -> str:
    """'3 rows with zero tokens (first: line 17)'."""
    plural = f"{len(lines)} {noun}{'s' * (len(lines) != 1)}"
    return f"{plural} {reason} (first: line {lines[0]})".replace("  ", " ")
