"""The project's own trace format: CSV with seconds and tokens, columns in any order."""

from simulator.formats._columns import Blocks, Column, Identifiers, Integers, Seconds, Text, Tokens
from simulator.formats._order import refuse_repeats, sorted_by
from simulator.formats._source import Source
from simulator.formats._table import header_names, read_table
from simulator.trace import Trace

NAME = "native"
DESCRIPTION = "CSV: arrival_s,prompt_tokens,output_tokens and optionally request_id,priority,session_id,prefix_ids"


class Priorities(Integers):
    """Scheduling priorities; what a larger one means is the policy's business."""

    unit = "priority levels"


COLUMNS: tuple[Column, ...] = (
    Seconds("arrival_s"),
    Tokens("prompt_tokens"),
    Tokens("output_tokens"),
    Identifiers("request_id", required=False),
    Priorities("priority", required=False),
    Text("session_id", required=False),
    Blocks("prefix_ids", required=False),
)


def recognises(head: str) -> bool:
    """Whether the header has all required columns; what else it has is checked on reading."""
    names = header_names(head)
    return all(column.name in names for column in COLUMNS if column.required)


def read(source: Source, repair: bool) -> Trace:
    """The trace with arrivals as they are in the file, not counted from the first."""
    table = sorted_by(read_table(source, COLUMNS, NAME, repair), "arrival_s", repair)
    refuse_repeats(table, "request_id")
    return Trace(
        name=source.name,
        format=NAME,
        arrival_ns=table.columns["arrival_s"],
        prompt_tokens=table.columns["prompt_tokens"],
        output_tokens=table.columns["output_tokens"],
        request_id=table.columns.get("request_id"),
        priority=table.columns.get("priority"),
        session_id=table.columns.get("session_id"),
        prefix_ids=table.columns.get("prefix_ids"),
        notes=table.notes,
        path=str(source.path),
        sha256=source.sha256,
    )
