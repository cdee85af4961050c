"""The rows of a CSV trace: read at once if nothing is unusual, else row by row to say what is wrong where.

Both ways give the same table. The first is tried on text whose every line has the right number of unquoted
fields, so that rows and lines correspond.
"""

import csv
import io
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError, nearest
from simulator.formats._columns import Column, Fault
from simulator.formats._source import Source
from simulator.trace import Ints

_BLANK = "blank"
_BEGINS_NUMBER = np.isin(np.arange(256), list(b"0123456789+-."))

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
            meant = nearest(name[:60], known, f"columns of the {format_name} format")
            raise fault(f"unknown column; {meant}", name)
        if name in names[:position]:
            raise fault("the column is there twice; remove one", name)
    for column in columns:
        if column.required and column.name not in names:
            raise fault(f"the column is missing; the header has {','.join(names)}", column.name)
    return [known[name] for name in names]


def read_table(source: Source, columns: Sequence[Column], format_name: str, repair: bool) -> Table:
    """The rows of a CSV trace in file order; `repair` leaves out those that cannot run and notes how many."""
    ordered = check_header(source, columns, format_name)
    table = _read_at_once(source, ordered) or _read_rows(source, ordered, repair)
    if not len(table.lines):
        left = f"no request is left ({', '.join(table.notes)})" if table.notes else "there is no request"
        raise InputError(f"{left}; a trace has a row for each request", path=source.path)
    return table


def _read_at_once(source: Source, columns: list[Column]) -> Table | None:
    """The table of a file with nothing unusual in it, or None."""
    body = source.body.rstrip(b"\r\n")
    ends = _field_ends(body, len(columns))
    if source.head_line > 1 or ends is None:
        return None
    try:
        _refuse_words(body, ends, columns)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # numpy 1.26 takes 12.5 for the integer 12, and warns
            numbers = _numbers(body, columns)
        values = {
            column.name: column.convert(_texts(body, ends, place) if column.dtype is None else numbers[column.name])
            for place, column in enumerate(columns)
        }
    except (ValueError, OverflowError, DeprecationWarning):
        return None
    return Table(source, values, np.arange(len(ends), dtype=np.int64) + source.head_line + 1)


def _field_ends(body: bytes, width: int) -> Ints | None:
    """Where each field of each line ends, shape (lines, width); None if quoted or of another width."""
    if not body or b'"' in body or body.count(b"\r") != body.count(b"\r\n"):
        return None
    letters = np.frombuffer(body, np.uint8)
    ends = np.append(np.flatnonzero((letters == ord(",")) | (letters == ord("\n"))), len(body))
    if len(ends) % width:
        return None
    at_line_end = np.append(letters[ends[:-1]] == ord("\n"), True).reshape(-1, width)
    regular = at_line_end[:, -1].all() and not at_line_end[:, :-1].any()
    return ends.reshape(-1, width) if regular else None


def _refuse_words(body: bytes, ends: Ints, columns: list[Column]) -> None:
    """ValueError if a field that is to be a number does not begin like one, as infinity and blanks do not."""
    letters = np.frombuffer(body + b"\n", np.uint8)
    starts = np.append(0, ends.ravel()[:-1] + 1).reshape(ends.shape)
    numeric = [place for place, column in enumerate(columns) if column.dtype]
    if not _BEGINS_NUMBER[letters[starts[:, numeric]]].all():
        raise ValueError


def _numbers(body: bytes, columns: list[Column]) -> Any:
    """The columns with a dtype, as a structured array; ValueError if a field is not such a number."""
    numeric = [place for place, column in enumerate(columns) if column.dtype]
    formats = np.dtype([(columns[place].name, columns[place].dtype) for place in numeric])
    return np.loadtxt(io.BytesIO(body), formats, comments=None, delimiter=",", usecols=numeric, ndmin=1)


def _texts(body: bytes, ends: Ints, place: int) -> list[str]:
    """The fields of one column as text; the last one of a line may have a carriage return behind it."""
    before = ends[:, place - 1] if place else np.append(-1, ends[:-1, -1])
    starts, stops = (before + 1).tolist(), ends[:, place].tolist()
    if body.isascii():  # letters are bytes
        text = body.decode()
        return [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return [body[start:stop].decode() for start, stop in zip(starts, stops, strict=True)]


def _read_rows(source: Source, columns: list[Column], repair: bool) -> Table:
    """The table read field by field; InputError at the first line that is wrong."""
    kept: list[list[Any]] = []
    lines: list[int] = []
    omitted: dict[str, list[int]] = {}
    parsers = [column.parse for column in columns]
    for line, fields in _rows(source):
        try:
            kept.append([parse(field) for parse, field in zip(parsers, fields, strict=True)])
            lines.append(line)
        except (Fault, ValueError):  # ValueError: too few or too many fields
            reason = _reason_to_drop(source, line, columns, fields, repair) if fields else _BLANK
            omitted.setdefault(reason, []).append(line)
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


def _reason_to_drop(source: Source, line: int, columns: list[Column], fields: list[str], repair: bool) -> str:
    """Why a repair drops this row, in which something is wrong; InputError if that stays an error."""
    if len(fields) != len(columns):
        count = f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {len(columns)}"
        names = ",".join(column.name for column in columns)
        raise InputError(f"{count} ({names}); correct the row", path=source.path, line=line)
    droppable: list[tuple[str, InputError]] = []
    for column, field in zip(columns, fields, strict=True):
        try:
            column.parse(field)
        except Fault as fault:
            error = InputError(str(fault), path=source.path, line=line, key=column.name)
            if fault.droppable is None:  # comes before what could be mended
                raise error from fault
            droppable.append((fault.droppable, error))
    reason, error = droppable[0]
    if not repair:
        raise error
    return reason


def _notes(omitted: dict[str, list[int]]) -> tuple[str, ...]:
    """What was left out, counted."""
    return tuple(
        f"skipped {counted(lines, 'blank line')}" if reason == _BLANK else f"dropped {counted(lines, 'row', reason)}"
        for reason, lines in omitted.items()
    )


def counted(lines: Sequence[int], noun: str, reason: str = "") -> str:
    """'3 rows with zero tokens (first: line 17)'."""
    plural = f"{len(lines)} {noun}{'s' * (len(lines) != 1)}"
    return f"{plural} {reason} (first: line {lines[0]})".replace("  ", " ")
