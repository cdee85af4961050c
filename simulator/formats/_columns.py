"""The kinds of column in a CSV trace: how one field is read, and how a whole clean column is read at once.

`parse` is the rule: one field to one value, or a Fault that says what is wrong. `convert` takes a whole
column, numbers as numpy parsed them or the fields as text, and must agree with `parse` on every field; it
raises ValueError as soon as one is not clean, and the file is then read field by field.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator.trace import Floats, Ints

MAX_TOKENS = 10**9  # a longer prompt is a slip; sums over any trace still fit 64 bits
_INT64_LIMIT = 2**63

ZERO = "with zero tokens"
NEGATIVE = "with a negative number"
NOT_FINITE = "with a number that is not finite"

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)


class Fault(Exception):
    """What is wrong with one field; `droppable` names the kind of rows that a repair drops, or is None."""

    def __init__(self, message: str, droppable: str | None = None):
        super().__init__(f"{message}: remove the row, or pass --repair" if droppable else message)
        self.droppable = droppable


def shown(field: str) -> str:
    """A field as a message quotes it: printable and short."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in field[:60])
    return f'"{printable}..."' if len(field) > 60 else f'"{printable}"'


def _number(field: str, unit: str) -> float:
    """The finite number in a stripped field."""
    if not _NUMBER.fullmatch(field):
        if _INFINITE.fullmatch(field):
            raise Fault(f"{shown(field)} is not a finite number of {unit}", NOT_FINITE)
        what = f"{shown(field)} is not a number" if field else "the field is empty"
        raise Fault(f"{what}; write a number of {unit}, such as 12")
    number = float(field)
    if abs(number) == float("inf"):
        raise Fault(f"{shown(field)} is too large a number of {unit}; correct it")
    return number


def _whole(field: str, unit: str, least: int) -> int:
    """The integer in a stripped field; 12.0 and 1e3 are integers."""
    if _WHOLE.fullmatch(field):
        return int(field)
    number = _number(field, unit)
    if number != np.floor(number):
        near = sorted({max(least, int(np.floor(number))), max(least, int(np.ceil(number)))})
        raise Fault(f"{shown(field)} is not a whole number of {unit}; write {' or '.join(map(str, near))}")
    return int(number)


@dataclass(frozen=True)
class Column(ABC):
    """A column by name; an optional one may be absent from the header. `dtype` None: the fields are text."""

    name: str
    required: bool = True
    dtype: ClassVar[type[np.generic] | None] = None

    @abstractmethod
    def parse(self, field: str) -> Any:
        """The value of one field."""

    @abstractmethod
    def convert(self, column: Any) -> Any:
        """The values of a clean column, an array of `dtype` or a list of text; else ValueError."""

    @abstractmethod
    def pack(self, values: list[Any]) -> Any:
        """Parsed values as the array or tuple that `convert` would give."""


class Integers(Column):
    """Integers of 64 bits."""

    dtype = np.int64
    unit: ClassVar[str] = "units"
    least: ClassVar[int] = -_INT64_LIMIT

    def parse(self, field: str) -> int:
        value = _whole(field.strip(), self.unit, self.least)
        if not -_INT64_LIMIT <= value < _INT64_LIMIT:
            raise Fault(f"{shown(field)} does not fit 64 bits; write a smaller number")
        return value

    def convert(self, column: Ints) -> Ints:
        return column

    def pack(self, values: list[Any]) -> Ints:
        return np.array(values, dtype=np.int64)


class Tokens(Integers):
    """Lengths in tokens: at least 1."""

    unit = "tokens"
    least = 1

    def parse(self, field: str) -> int:
        value = super().parse(field)
        if value == 0:
            raise Fault("0 tokens, and the least that can run is 1", ZERO)
        if value < 0:
            raise Fault(f"{value} tokens, and the least that can run is 1", NEGATIVE)
        if value > MAX_TOKENS:
            raise Fault(f"{value} tokens, and the most that is believed is {MAX_TOKENS}; correct it")
        return value

    def convert(self, column: Ints) -> Ints:
        if len(column) and (column.min() < 1 or column.max() > MAX_TOKENS):
            raise ValueError
        return column


class Seconds(Column):
    """Seconds from 0, as integer nanoseconds rounded half to even."""

    dtype = np.float64

    def parse(self, field: str) -> float:
        value = _number(field.strip(), "seconds")
        if value < 0:
            raise Fault(f"{shown(field)} seconds is before the start of the trace, 0", NEGATIVE)
        if value * 1e9 >= _INT64_LIMIT:
            raise Fault(f"{shown(field)} seconds is more than the 292 years that a trace may last; correct it")
        return value

    def convert(self, column: Floats) -> Ints:
        nanoseconds: Floats = np.rint(column * 1e9)
        if not ((nanoseconds >= 0) & (nanoseconds < _INT64_LIMIT)).all() or (column < 0).any():
            raise ValueError
        return nanoseconds.astype(np.int64)

    def pack(self, values: list[Any]) -> Ints:
        return self.convert(np.array(values, dtype=np.float64))


class Text(Column):
    """Text without surrounding blanks; it may be empty."""

    def parse(self, field: str) -> str:
        return field.strip()

    def convert(self, column: list[str]) -> tuple[Any, ...]:
        try:
            return tuple(map(self.parse, column))
        except Fault as fault:
            raise ValueError from fault

    def pack(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values)


class Identifiers(Text):
    """Text that is never empty."""

    def parse(self, field: str) -> str:
        name = field.strip()
        if not name:
            raise Fault("the field is empty; give each request a name, or leave the column out")
        return name


class Blocks(Text):
    """Space-separated integers, possibly none."""

    def parse(self, field: str) -> Any:
        try:
            if "_" in field or not field.isascii():  # int() would read 1_000 and digits of any script
                raise ValueError
            return tuple(map(int, field.split()))
        except ValueError as error:
            raise Fault(f"{shown(field)} is not block ids; write whole numbers with spaces between") from error
