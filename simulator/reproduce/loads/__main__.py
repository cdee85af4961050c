"""`python -m simulator.reproduce.loads FOLDER`: disaggregation against chunked prefill over loads, run again."""

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from simulator import __version__

NAME = "python -m simulator.reproduce.loads"
EPILOG = f"""\b
Examples:
  {NAME} results/disaggregation
  simulate-trace results/disaggregation/systems.yaml --speedup 2 --out mine
      one load, with all output files of simulate-trace

\b
Exit status: 0 done, whatever the figures; 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), metavar="N",
              help="Simulations at a time. [default: as many as CPUs]")  # fmt: skip
@click.version_option(__version__, prog_name=NAME)
def loads(folder: Path, jobs: int) -> None:
    """Run a sweep over loads, and DistServe's figure 1, and write loads.csv, figure-1.csv, loads.png and README.md.

    FOLDER has sweep.yaml, the experiment that it names, and figure-1.yaml with its cost table.
    """
    from simulator.reproduce.loads import figure1
    from simulator.reproduce.loads.page import page
    from simulator.reproduce.loads.plots import measures, write_plot
    from simulator.reproduce.loads.sweep import crossovers, read_sweep, rows

    path = folder / "sweep.yaml"
    sweep = read_sweep(path)
    table = []
    for row in rows(path, sweep, jobs):
        table.append(row)
        click.echo(f"{row['label']} at {row['offered_per_s_per_gpu']:.2f} requests/s and GPU", err=True)
    _write_csv(folder / "loads.csv", table)
    if not (folder / "requests.csv").exists():
        figure1.write_requests(folder / "requests.csv")
    rates = figure1.rates(folder / "figure-1.yaml", jobs)
    _write_csv(folder / "figure-1.csv", rates)
    found = {column: crossovers(table, sweep, column, higher=higher) for column, (_, higher) in measures(sweep).items()}
    write_plot(table, sweep, found, folder)
    (folder / "README.md").write_text(page(table, rates, sweep, found, folder), encoding="utf-8")
    click.echo(f"written to {folder}")


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Floats in the shortest form that reads back equal; what there is not is empty."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([["" if value != value else value for value in row.values()] for row in rows])


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    from simulator.errors import run_command

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies matrices
    run_command(loads, NAME)


if __name__ == "__main__":
    main()
