"""Trace files of many origins become one `Trace`; the format is recognised by the file's first line.

A format is one module of this package (a name without a leading underscore) that offers the names of
`Format`; adding one is adding that file.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast

from simulator.errors import InputError
from simulator.formats._columns import Column, shown
from simulator.formats._source import Source, open_source
from simulator.formats._table import check_header, header_names
from simulator.trace import Trace

__all__ = ["Format", "format_names", "formats", "read_trace"]


class Format(Protocol):
    """What a module of this package offers to be a trace format.

    `COLUMNS` are those of a CSV format, to say what is wrong with a header that is almost right, else empty.
    `recognises` sees the first line that is not blank, without its line end; at most one format may say yes
    to a line. `read` raises InputError for everything that is wrong with the file.
    """

    NAME: str
    DESCRIPTION: str
    COLUMNS: Sequence[Column]

    def recognises(self, head: str) -> bool: ...

    def read(self, source: Source, repair: bool) -> Trace: ...


@cache
def formats() -> tuple[Format, ...]:
    """Every trace format there is, sorted by module name."""
    names = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return tuple(cast(Format, import_module(f"{__name__}.{name}")) for name in names)


def format_names() -> list[str]:
    """The names of the formats that `read_trace` recognises."""
    return [known.NAME for known in formats()]


def read_trace(path: Path, *, repair: bool = False) -> Trace:
    """The requests of a trace file, sorted by arrival.

    Raises InputError for whatever is wrong with the file. With `repair`, arrivals are sorted and rows that no
    engine could run (without tokens, negative, not finite) are dropped, each counted in `Trace.notes`; broken
    syntax stays an error. A regular file takes about a second per million rows, any other some ten seconds.
    """
    source = open_source(path)
    for known in formats():
        if known.recognises(source.head):
            return known.read(source, repair)
    raise _unrecognised(source)


def _unrecognised(source: Source) -> InputError:
    """What is wrong with a first line that no format knows: the slip in it, or the list of what is known."""
    nearest = max(formats(), key=lambda known: _likeness(source.head, known))
    if 2 * _likeness(source.head, nearest) > sum(column.required for column in nearest.COLUMNS):
        try:
            check_header(source, nearest.COLUMNS, nearest.NAME)
        except InputError as slip:
            return slip
    for separator, noun in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if any(known.recognises(source.head.replace(separator, ",")) for known in formats()):
            message = f"the fields are separated by {noun}; separate them by commas"
            return InputError(message, path=source.path, line=source.head_line)
    known_heads = "; ".join(f"{known.NAME} ({known.DESCRIPTION})" for known in formats())
    return InputError(
        f"no known trace format begins with {shown(source.head)}. Known: {known_heads}",
        path=source.path,
        line=source.head_line,
    )


def _likeness(head: str, known: Format) -> int:
    """How many of the format's columns the header has, give or take a slip in the name."""
    names = [name[:40].lower() for name in header_names(head)[:40]]  # a binary-like line may have thousands

    def near(column: Column) -> bool:
        return any(SequenceMatcher(None, name, column.name.lower()).ratio() >= 0.75 for name in names)

    return sum(near(column) for column in known.COLUMNS)
