"""`python -m simulator.compare.validate FOLDER... --out DIR`: how accurate simulations of measured runs are."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simulator import __version__
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.compare.validated_run import ValidatedRun

NAME = "python -m simulator.compare.validate"
TABLES = ("errors.csv", "held_out.csv", "steps.csv", "parts.csv", "overlap.csv")
PAGE = "README.md"
EPILOG = f"""\b
Examples:
  {NAME} my-run --out accuracy
      a folder with run.json, trace.csv and requests.csv, and if there token_times.jsonl.gz and steps.csv.gz
  {NAME} run-1 run-2 --engine my-host.yaml --costs my-gpu.csv --out accuracy
      an engine and a GPU of your own

\b
Keys of run.json: model, mode (sync, async), budget (max_num_batched_tokens), max_num_seqs, block (KV block size),
kv_blocks (as the engine reports them), enable_prefix_caching; if not 0, 1 and 1: lpt (long_prefill_token_threshold),
tensor and pipeline (degrees).
Exit status: 0 done, whatever the errors; 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("measured", nargs=-1, required=True, metavar="MEASURED...",
                type=click.Path(exists=True, file_okay=False, path_type=Path))  # fmt: skip
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write README.md, tables and plots there.")  # fmt: skip
@click.option("--costs", metavar="TABLE", help="Cost table for all runs. [default: h200/MODEL of each]")
@click.option("--engine", default="vllm-0.23", show_default=True, metavar="PROFILE", help="Engine profile.")
@click.option("--hold-out", default=0.5, show_default=True, type=click.FloatRange(0, 0.9), metavar="SHARE",
              help="Share of steps that the profile was not fitted to, in runs that it was fitted to.")  # fmt: skip
@click.option("--hold-runs-out", is_flag=True,
              help="Simulate each run also with host times fitted to others of its mode on as many GPUs.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the files of an earlier validation in DIR.")
@click.version_option(__version__, prog_name=NAME)
def validate(
    measured: tuple[Path, ...],
    out: Path,
    costs: str | None,
    engine: str,
    hold_out: float,
    hold_runs_out: bool,
    force: bool,
) -> None:
    """Simulate measured runs of vLLM, and write a page on how far the simulations are from what was measured.

    Each folder is a run; its run.json says how it was served, its trace.csv what was asked. Writes README.md,
    errors.csv (figures), steps.csv (step times), parts.csv (where the error of the mean ITL comes from), overlap.csv
    (how far the stages of pipelines overlap) and plots.
    """
    from simulator.compare.validated_run import validate_run
    from simulator.compare.validation_page import page
    from simulator.compare.validation_plots import write_plots
    from simulator.compare.validation_tables import write_tables

    names = [folder.resolve().name for folder in measured]
    if len(set(names)) < len(names):
        raise InputError(f"folders of one name: {', '.join(names)}", key="MEASURED")
    _require_room(out, force)
    runs: list[ValidatedRun] = []
    for folder in measured:
        runs.append(validate_run(folder, costs=costs, engine=engine, held_out=hold_out))
        click.echo(f"{runs[-1].name}: simulated and compared", err=True)
    others: list[ValidatedRun] = []
    if hold_runs_out:
        from simulator.compare.held_out_runs import held_out_runs

        others = held_out_runs(measured, runs, costs, engine)
        click.echo(f"{len(others)} runs: simulated with what the others tell", err=True)
    _make_way(out)
    write_tables(runs, out, others)
    drawn = write_plots(runs, out)
    (out / PAGE).write_text(page(runs, drawn, shlex.join([*NAME.split(), *sys.argv[1:]]), others), encoding="utf-8")
    click.echo(f"written to {out}; {out / PAGE} is the page")


def _require_room(out: Path, force: bool) -> None:
    """InputError where a file of ours would replace one that no validation wrote, or any without `force`."""
    there = [name for name in (PAGE, *TABLES) if (out / name).exists()]
    if there and not force:
        raise InputError(f"{out / there[0]} exists; --force overwrites an earlier validation", key="--out")
    if there and not _validated(out):
        raise InputError(f"{out / there[0]} is of no earlier validation; choose another folder", key="--out")


def _validated(out: Path) -> bool:
    """Whether `out` holds a validation: by the header of its table of errors."""
    from simulator.compare.validation_tables import COLUMNS

    try:
        with open(out / "errors.csv", encoding="utf-8") as file:
            return file.readline().strip() == ",".join(COLUMNS["errors.csv"])
    except (OSError, UnicodeDecodeError):
        return False


def _make_way(out: Path) -> None:
    """Make the folder, and remove an earlier validation's plots: they may be of other runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f'cannot make folder "{out}": {error.strerror}', key="--out") from None
    for pattern in ("overview.png", "quantiles-*.png", "steps-*.png", "itl-*.png", "overlap-*.png"):
        for path in out.glob(pattern) if _validated(out) else ():
            path.unlink()


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    import os

    from simulator.errors import run_command

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies matrices
    run_command(validate, NAME)


if __name__ == "__main__":
    main()
