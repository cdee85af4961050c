"""`python -m simulator.reproduce FOLDER`: SARATHI's pipeline experiment, run again with all variations."""

import os
import shlex
import sys
import time
from pathlib import Path

import click

from simulator import __version__
from simulator.errors import InputError

NAME = "python -m simulator.reproduce"
EPILOG = f"""\b
Examples:
  {NAME} results/sarathi-pipeline
  {NAME} results/sarathi-pipeline --only paper-table --out quick
  simulate-trace results/sarathi-pipeline/tp-pp.yaml --out mine
      the two pipelines alone, with all output files of simulate-trace

\b
Exit status: 0 done, whatever the ratios; 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write README.md, ratios.csv, times.csv and plots there. [default: FOLDER]")  # fmt: skip
@click.option("--only", multiple=True, metavar="VARIATION", help="Run this variation alone; repeatable.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), metavar="N",
              help="Simulations at a time. [default: as many as CPUs]")  # fmt: skip
@click.version_option(__version__, prog_name=NAME)
def reproduce(folder: Path, out: Path | None, only: tuple[str, ...], jobs: int) -> None:
    """Run SARATHI's pipeline experiment and write our ratios beside the published ones.

    FOLDER has tp-pp.yaml (two pipelines), tp-only.yaml (replicas) and variations.yaml, which says what else is tried.
    The requests are written to FOLDER first if they are not there.
    """
    from simulator.reproduce.figures import write_tables
    from simulator.reproduce.outcomes import find_outcomes, require_known
    from simulator.reproduce.page import PAGE, page
    from simulator.reproduce.plots import write_plots
    from simulator.reproduce.variations import read_variations
    from simulator.reproduce.zipf import write_requests

    began = time.perf_counter()
    variations = read_variations(folder / "variations.yaml")
    require_known(only, variations)
    if only and out is None:
        raise InputError(f"the page in {folder} is of all variations; give a part of them another folder", key="--out")
    out = folder if out is None else out
    _make_room(out)
    if not (folder / "requests.csv").exists():
        write_requests(folder / "requests.csv")
    chosen = [variation for variation in variations if not only or variation.name in only]
    outcomes, trace = find_outcomes(folder, chosen, jobs, lambda text: click.echo(text, err=True))
    write_tables(outcomes, out)
    write_plots(outcomes, out)
    command = shlex.join([*NAME.split(), *sys.argv[1:]])
    (out / PAGE).write_text(page(outcomes, trace, command, time.perf_counter() - began), encoding="utf-8")
    click.echo(f"written to {out}; {out / PAGE} is the page")


def _make_room(out: Path) -> None:
    """Make the folder. InputError where a page in it is not ours, so that nobody's README is overwritten."""
    from simulator.reproduce.figures import is_ours
    from simulator.reproduce.page import PAGE

    if (out / PAGE).exists() and not is_ours(out):
        raise InputError(f"{out / PAGE} is of no earlier run of this; choose another folder", key="--out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f'cannot make folder "{out}": {error.strerror}', key="--out") from None


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    from simulator.errors import run_command

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies matrices
    run_command(reproduce, NAME)


if __name__ == "__main__":
    main()
