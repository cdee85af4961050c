"""The rows of a cost table: which columns place a point, and what a field may be.

| operator | columns that place the point |
| --- | --- |
| `qkv_proj`, `o_proj`, `mlp`, `elementwise`, `embedding` | `tokens` of the step |
| `lm_head` (final norm, LM head, greedy sampling) | `sequences` |
| `attention` | `prefills` sequences of `prefill_tokens` new tokens each after `prefill_context` cached ones, and `decodes` sequences that each attend to `decode_context` entries, their own new token included; `decode_longest` the longest of them where they differ (`simulator.attention.contexts`), `decode_context` being their mean |
| `whole_layer` | `tokens` of one prompt: a whole layer, in a run as long as the step of all layers |

`mlp` is the whole gated (or plain) MLP. `elementwise` is everything else of a layer, fused as engines fuse it: norms
with their residual adds, rotary embedding and the KV-cache write. Learned positions belong to `embedding`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError, nearest

TOKEN_OPERATORS = ("qkv_proj", "o_proj", "mlp", "elementwise", "embedding")
OPERATORS = (*TOKEN_OPERATORS, "lm_head", "attention", "whole_layer")
PLACE_COLUMNS = (
    "tokens",
    "sequences",
    "prefills",
    "prefill_tokens",
    "prefill_context",
    "decodes",
    "decode_context",
    "decode_longest",
)
TIME_COLUMNS = ("time_us", "p10_us", "p90_us")
COLUMNS = ("operator", *PLACE_COLUMNS, *TIME_COLUMNS, "repeats", "sm_mhz")
OPTIONAL_COLUMNS = ("decode_longest", "repeats", "sm_mhz")

_LARGEST_PLACE = 10**8
_LONGEST_US = 1e12
_PLAIN_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")


def checked_rows(
    header: Sequence[str], numbered: Sequence[tuple[int, Sequence[str]]], path: Path
) -> dict[str, NDArray[Any]]:
    """The columns; InputError where one is missing or twice there, or a field is not what it should be.

    `numbered` are the rows with their lines.
    """
    for column in COLUMNS:
        if column not in header and column not in OPTIONAL_COLUMNS:
            raise InputError(f"column missing; {nearest(column, header, 'columns')}", path=path, key=column)
        if header.count(column) > 1:
            raise InputError("the column is there twice; remove one", path=path, key=column)
    if not numbered:
        raise InputError("no rows", path=path)
    for line, fields in numbered:
        if len(fields) != len(header):
            raise InputError(f"{len(fields)} fields where the header has {len(header)}", path=path, line=line)
    lines, texts = zip(*numbered, strict=True)
    fields_of = dict(zip(header, zip(*texts, strict=True), strict=True))
    for line, operator in zip(lines, fields_of["operator"], strict=True):
        if operator not in OPERATORS:
            hint = nearest(operator, OPERATORS, "operators")
            shown = " ".join(operator.split())[:60]
            raise InputError(f'unknown operator "{shown}"; {hint}', path=path, line=line, key="operator")
    rows: dict[str, NDArray[Any]] = {"operator": np.array(fields_of["operator"])}
    for column in (*PLACE_COLUMNS, *TIME_COLUMNS):
        if column not in header:
            rows[column] = np.zeros(len(numbered), dtype=np.int64)
            continue
        numbers = _measures(zip(lines, fields_of[column], strict=True), column, path)
        rows[column] = np.array(numbers, dtype=np.int64 if column in PLACE_COLUMNS else np.float64)
    _require_work(rows, lines, path)
    for column in ("repeats", "sm_mhz"):
        if column in header:
            rows[column] = np.array([_number(field) for field in fields_of[column]])
    return rows


def _require_work(rows: Mapping[str, NDArray[Any]], lines: Sequence[int], path: Path) -> None:
    """InputError at the first row that measured nothing: no tokens, or sequences without any."""
    operator, attention = rows["operator"], rows["operator"] == "attention"
    of_tokens = np.isin(operator, (*TOKEN_OPERATORS, "whole_layer"))
    for wrong, column in (
        (of_tokens & (rows["tokens"] == 0), "tokens"),
        ((operator == "lm_head") & (rows["sequences"] == 0), "sequences"),
        (attention & (rows["prefills"] + rows["decodes"] == 0), "prefills"),
        (attention & (rows["prefills"] > 0) & (rows["prefill_tokens"] == 0), "prefill_tokens"),
        (attention & (rows["decodes"] > 0) & (rows["decode_context"] == 0), "decode_context"),
    ):
        if wrong.any():
            line = lines[int(np.flatnonzero(wrong)[0])]
            raise InputError("should be above 0 in this row", path=path, line=line, key=column)


def _number(field: str) -> float:
    """The number in a field, NaN if it is none; unlike float() it takes no underscores and no foreign digits."""
    return float(field) if _PLAIN_NUMBER.fullmatch(field) else float("nan")


def _measures(fields: Iterable[tuple[int, str]], column: str, path: Path) -> list[float]:
    """The numbers of a column: finite, not negative, places whole, and times above 0."""
    numbers, place, known = [], column in PLACE_COLUMNS, dict[str, float]()
    for line, text in fields:
        if text in known:  # places are few and come again in row after row
            numbers.append(known[text])
            continue
        number = _number(text)
        fits = number <= _LARGEST_PLACE and number.is_integer() if place else number <= _LONGEST_US
        if not fits or number < 0 or (number == 0 and column == "time_us"):
            raise InputError(f"not a measurement: {text!r}", path=path, line=line, key=column)
        known[text] = number
        numbers.append(number)
    return numbers
