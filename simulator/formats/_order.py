"""The order of a table's rows: by arrival, each request once."""

from dataclasses import replace

import numpy as np

from simulator.formats._columns import shown
from simulator.formats._table import Table, counted
from simulator.trace import Ints


def sorted_by(table: Table, name: str, repair: bool) -> Table:
    """The rows sorted by the column `name` (nanoseconds), ties in file order.

    Rows out of order are an error at the first of them, or with `repair` sorted and counted in the notes.
    """
    arrival_ns: Ints = table.columns[name]
    late = np.flatnonzero(arrival_ns < np.maximum.accumulate(arrival_ns))
    if not len(late):
        return table
    first = int(late[0])
    if not repair:
        behind_s = (arrival_ns[first - 1] - arrival_ns[first]) / 1e9
        message = f"arrives {behind_s:g} s before the request on line {table.lines[first - 1]}"
        raise table.fault(f"{message}: sort it, or pass --repair", first, name)
    verb = "was" if len(late) == 1 else "were"
    note = f"sorted {counted(table.lines[late].tolist(), 'row', f'that {verb} out of order')}"
    ordered = table.take(np.argsort(arrival_ns, kind="stable"))
    return replace(ordered, notes=(*table.notes, note))


def refuse_repeats(table: Table, name: str) -> None:
    """InputError if two rows have the same value in the column `name`, at the later one."""
    values: tuple[str, ...] = table.columns.get(name, ())
    if len(set(values)) == len(values):
        return
    seen: dict[str, int] = {}
    for row in np.argsort(table.lines).tolist():
        value = values[row]
        if value in seen:
            message = f"{shown(value)} is already on line {seen[value]}"
            raise table.fault(f"{message}; give each request its own, or leave the column out", row, name)
        seen[value] = int(table.lines[row])
