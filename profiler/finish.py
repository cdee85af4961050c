"""The end of a run, and `profile-gpu --report`: the answer in words, and the plots. No GPU and no torch needed."""

import sys
from collections.abc import Sequence
from pathlib import Path

from profiler.answer import answer
from simulator.cost_table import CostTable
from simulator.named_tables import find_table


def folder_of(table: Path) -> Path:
    """Where the plots of a table go: `NAME-plots` beside `NAME.csv`."""
    return table.with_name(f"{table.name.removesuffix('.csv')}-plots")


def finish(table: CostTable, decodes: int, plots: Path | None, quiet: bool, remarks: Sequence[str] = ()) -> None:
    """Print the answer and then `remarks`, unless `quiet`; draw into the folder `plots` if there is one."""
    if not quiet:
        print("\n".join([*answer(table.frame(), table.metadata, decodes), *remarks]), flush=True)
    if plots is None:
        return
    from profiler.plots import write_plots  # matplotlib takes a second to load

    write_plots(table, plots)
    if not quiet:
        print(f"profile-gpu: plots in {plots}", file=sys.stderr)


def report(name: str, decodes: int, plots: Path | None, no_plots: bool, quiet: bool) -> None:
    """The end of a run from the finished table of that path or name. Raises InputError.

    The plots of a table that ships with the project go to the current folder.
    """
    table = find_table(name)
    path = Path(name) if Path(name).is_file() else Path(Path(name).name)
    origin = table.metadata.origin
    rounding = "; ± 1 % above is rounding" if table.metadata.source == "modelled" else ""
    remarks = [f"note: {origin}{rounding}"] if origin else []
    finish(table, decodes, None if no_plots else plots or folder_of(path), quiet, remarks)
