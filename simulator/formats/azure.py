"""Azure's LLM inference traces of 2023 and 2024: CSV with a time stamp and two token counts.

The 2023 stamps have seven fraction digits and no zone; the week of 2024 has six, or none where they are zero,
and `+00:00` (github.com/Azure/AzurePublicDataset): `strptime` reads neither, and no one format reads both.
"""

import re
from datetime import UTC, datetime

import numpy as np

from simulator.errors import InputError
from simulator.formats._columns import Column, Fault, Tokens, shown
from simulator.formats._order import sorted_by
from simulator.formats._source import Source
from simulator.formats._table import header_names, read_table
from simulator.trace import Ints, Trace

NAME = "azure"
DESCRIPTION = "Azure LLM inference traces 2023 and 2024, CSV: TIMESTAMP,ContextTokens,GeneratedTokens"

_STAMP = re.compile(
    r"(?P<whole>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(\.(?P<fraction>[0-9]*))?"
    r" ?(?P<zone>Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
)
_ALLOWED = {"0": b"0123456789", " ": b" T"}
_LAYOUT = [list(_ALLOWED.get(letter, letter.encode())) for letter in "0000-00-00 00:00:00"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stamps(Column):
    """Time stamps as nanoseconds since 1970, UTC unless they say otherwise, to the last digit."""

    def parse(self, field: str) -> int:
        match = _STAMP.fullmatch(field.strip())
        try:
            if match is None:
                raise ValueError
            moment = datetime.fromisoformat(match["whole"] + (match["zone"] or "+00:00")) - _EPOCH
        except ValueError as error:
            example = "2023-11-16 18:15:46.6805900"
            raise Fault(f"{shown(field)} is not a time stamp; write it as in {example}") from error
        stamp_ns = (moment.days * 86_400 + moment.seconds) * 10**9 + int((match["fraction"] or "0")[:9].ljust(9, "0"))
        if abs(stamp_ns) >= 2**63:
            raise Fault(f"{shown(field)} is not between the years 1678 and 2261; correct it")
        return stamp_ns

    def convert(self, column: list[str]) -> Ints:
        import pandas as pd  # takes longer to load than most traces take to read

        letters = np.array(column, dtype=f"S{len(_LAYOUT)}").view(np.uint8).reshape(len(column), len(_LAYOUT))
        if not all(np.isin(letters[:, place], allowed).all() for place, allowed in enumerate(_LAYOUT)):
            raise ValueError  # pandas also reads bare dates, "now" and more
        stamps = pd.DatetimeIndex(pd.to_datetime(column, format="ISO8601", utc=True))
        if stamps.hasnans:
            raise ValueError
        return np.asarray(stamps.as_unit("ns").asi8, dtype=np.int64)

    def pack(self, values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)


COLUMNS: tuple[Column, ...] = (Stamps("TIMESTAMP"), Tokens("ContextTokens"), Tokens("GeneratedTokens"))


def recognises(head: str) -> bool:
    """Whether the header has exactly these columns; the multimodal trace of 2025 has more."""
    return sorted(header_names(head)) == sorted(column.name for column in COLUMNS)


def read(source: Source, repair: bool) -> Trace:
    """The trace with arrivals counted from its first request."""
    table = sorted_by(read_table(source, COLUMNS, NAME, repair), "TIMESTAMP", repair)
    stamps_ns = table.columns["TIMESTAMP"]
    if int(stamps_ns[-1]) - int(stamps_ns[0]) >= 2**63:
        raise InputError("the stamps span more than 292 years", path=source.path, key="TIMESTAMP")
    return Trace(
        name=source.name,
        format=NAME,
        arrival_ns=stamps_ns - stamps_ns[0],
        prompt_tokens=table.columns["ContextTokens"],
        output_tokens=table.columns["GeneratedTokens"],
        notes=table.notes,
        path=str(source.path),
        sha256=source.sha256,
    )
