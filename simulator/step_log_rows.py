"""The rows of a step log: its columns, and reading and checking them one by one with the standard library alone.

`profiler.step_log` writes such logs inside a serving engine, so nothing heavy may be imported here;
`simulator.step_log_file` makes arrays of a whole log.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from math import isfinite
from pathlib import Path
from typing import TextIO

from simulator.errors import InputError

COLUMNS = (
    "step", "schedule_start_s", "schedule_end_s", "output_ready_s", "update_end_s", "num_waiting", "num_running",
    "num_decodes", "decode_context_sum", "decode_context_max", "prefills", "preempted",
)  # fmt: skip
CLOCKS = COLUMNS[1:5]
COUNTS = COLUMNS[5:10]
MOST = 2**53
"""No count or id is as large; beyond it neither floats nor 64-bit sums of rows are exact."""
GZIP = b"\x1f\x8b"

Row = dict[str, str]


def checked_rows(path: Path, say: Callable[[str], None]) -> Iterator[tuple[int, Row]]:
    """(line, row) of a log, gzip or plain CSV, in order; what a row holds can be.

    A last batch that a killed server left cut off ends the log, and `say` is told. Raises InputError with file and line
    for a file that is no step log and a row that cannot be.
    """
    previous = None
    for line, row in _rows(path, say):
        try:
            check_row(row, previous)
        except (TypeError, ValueError) as error:
            raise InputError(str(error), path=path, line=line) from None
        yield line, row
        previous = row


def is_step_log(path: Path) -> bool:
    """Whether the first line of `path`, gzip or not, is that of a step log."""
    try:
        with _opened(path) as file:
            return file.readline(1000).strip() == ",".join(COLUMNS)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return False


def check_row(row: Row, previous: Row | None) -> None:
    """ValueError or TypeError with the reason where a row cannot be, by itself or after `previous`."""
    if None in row or None in row.values():
        raise ValueError(f"not {len(COLUMNS)} columns")
    times = [float(row[name]) for name in CLOCKS]
    if times != sorted(times) or not all(map(isfinite, times)):
        raise ValueError(f"times must not decrease from {CLOCKS[0]} to {CLOCKS[-1]}")
    step, *counts = (_count(row[name], name) for name in ("step", *COUNTS))
    decodes, total, longest = counts[2:]
    if not longest <= total <= decodes * longest:
        raise ValueError(f"{decodes} decodes with contexts up to {longest} cannot have {total} in sum")
    for request in row["preempted"].split():
        _count(request, "preempted")
    chunks_of(row)
    if previous is not None:
        if step <= int(previous["step"]):
            raise ValueError(f"step {step} follows step {previous['step']}")
        for name in CLOCKS:
            if float(row[name]) < float(previous[name]):
                raise ValueError(f"{name} is before that of step {previous['step']}")


def chunks_of(row: Row) -> list[tuple[int, int, int]]:
    """(request, context before, tokens) of each prompt chunk; ValueError where the text says something else."""
    chunks = []
    for chunk in row["prefills"].split():
        parts = chunk.split(":")
        if len(parts) != 3:
            raise ValueError(f"prefill {chunk} should be request:context_before:tokens")
        request, before, tokens = (_count(part, f"prefill {chunk}") for part in parts)
        if tokens < 1:
            raise ValueError(f"prefill {chunk} has no tokens")
        chunks.append((request, before, tokens))
    return chunks


def _count(text: str, name: str) -> int:
    number = int(text)
    if not 0 <= number < MOST:
        raise ValueError(f"{name} {text} should be from 0 to 2^53")
    return number


def _rows(path: Path, say: Callable[[str], None]) -> Iterator[tuple[int, Row]]:
    header_read = False
    try:
        with _opened(path) as file:
            reader = csv.DictReader(file)
            header_read = reader.fieldnames is not None
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise InputError(f"not a step log: its columns must be {', '.join(COLUMNS)}", path=path, line=1)
            for row in reader:
                yield reader.line_num, row
    except EOFError:
        if not header_read:
            raise InputError("cannot be read: it ends before the first row", path=path) from None
        say(f"{path}: the last batch is cut off; the rows before it are whole")
    except (OSError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", path=path) from None


def _opened(path: Path) -> AbstractContextManager[TextIO]:
    with open(path, "rb") as file:
        compressed = file.read(2) == GZIP or path.suffix == ".gz"
    return (
        gzip.open(path, "rt", encoding="utf-8", newline="") if compressed else open(path, encoding="utf-8", newline="")
    )
