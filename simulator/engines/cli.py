"""The command `calibrate-engine`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simulator import __version__
from simulator.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from simulator.engines.calibrate import Calibration

EPILOG = """\b
Examples:
  calibrate-engine steps.csv.gz --costs h200/llama-3.1-8b --out my-host.yaml
      fit to half of a log, check on the other half; then
  simulate-trace mytrace.csv --policy vllm --engine my-host.yaml
  calibrate-engine sync/ async/ --costs h200/llama-3.1-8b --out my-host.yaml
      folders with steps.csv.gz and requests.csv: both modes, and the time of arrival and delivery

\b
A step log is written by the scheduler class profiler.vllm_steps.StepLogger on a live vLLM server.
Exit status: 0 done, 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("steps", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="STEPS...")
@click.option(
    "--costs",
    multiple=True,
    required=True,
    metavar="TABLE",
    help="Cost table of the model on the GPU of the log; one for all logs, or one for each in order.",
)
@click.option(
    "--engine",
    default="vllm-0.23",
    metavar="PROFILE",
    help="Profile to start from: CUDA-graph sizes, and what the logs do not tell. [default: vllm-0.23]",
)
@click.option(
    "--network",
    metavar="NETWORK",
    help="What joins the ranks of a table of one of several (@tpN). [default: by the GPU]",
)
@click.option("--name", metavar="NAME", help="Name of the new profile. [default: the file's, or the start's]")
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1),
    metavar="N",
    help="The engine's max_num_seqs, which limits captured sizes. [default: of run.json in a folder, else no limit]",
)
@click.option(
    "--requests",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="CSV",
    help="Columns arrival_s, first_token_s and prompt_tokens as clients saw them; one for each log in order.",
)
@click.option(
    "--hold-out",
    default=0.5,
    type=click.FloatRange(0, 0.9),
    metavar="SHARE",
    help="Share of the steps that is not fitted to, but checked on. [default: 0.5]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="YAML", help="Write the profile there.")
@click.option("--force", is_flag=True, help="Overwrite an existing YAML.")
@click.version_option(__version__, prog_name="calibrate-engine")
def calibrate_engine(
    steps: tuple[Path, ...],
    costs: tuple[str, ...],
    engine: str,
    network: str | None,
    name: str | None,
    max_num_seqs: int | None,
    requests: tuple[Path, ...],
    hold_out: float,
    out: Path | None,
    force: bool,
) -> None:
    """Fit an engine profile to step logs of a running engine.

    A profile says what an engine's host adds to the GPU's time: scheduling, preparing inputs, launching kernels,
    handling outputs, with and without asynchronous scheduling. Prints the errors of predicted step times on steps that
    were fitted to and on those that were not, and which parts no log tells; these are kept as they were.
    """
    from rich.console import Console

    from simulator.engines.calibrate import calibrate, profile_keys
    from simulator.engines.profile import check_profile, dump_profile, load_engine
    from simulator.engines.recording import read_recording
    from simulator.named_tables import find_table
    from simulator.printing import print_table

    if out is not None:
        _require_free(out, force)
    start = load_engine(engine)
    if start is None:
        raise InputError("none has no parts to fit; name a profile", key="--engine")
    for given, key in ((costs, "--costs"), (requests, "--requests")):
        if len(given) not in (len(steps), 0 if key == "--requests" else 1):
            raise InputError(f"{len(given)} for {len(steps)} step logs; give one for each", key=key)
    tables = [find_table(name_or_path) for name_or_path in (costs * len(steps) if len(costs) == 1 else costs)]
    recordings = [
        read_recording(path, table, max_num_seqs, requests[place] if requests else None, network)
        for place, (path, table) in enumerate(zip(steps, tables, strict=True))
    ]
    found = calibrate(recordings, start, name=name or (out.stem if out is not None else start.name), held_out=hold_out)
    console = Console()
    console.width = max(console.width, 100)
    print_table(console, residual_table(found))
    for recording in recordings:
        for note in recording.log.notes:
            console.print(f"note: {recording.name}: {note}", highlight=False, markup=False, soft_wrap=True)
    for line in found.unidentified:
        console.print(f"not in the logs: {line}", highlight=False, markup=False, soft_wrap=True)
    keys = profile_keys(found.profile)
    check_profile(keys)
    text = dump_profile(keys)
    if out is None:
        click.echo(text, nl=False)
        return
    _write(out, text)
    only = "" if len({line.mode for line in found.residuals}) > 1 else _used_by(found)
    console.print(
        f"written to {out}; simulate-trace --engine {out} uses it{only}", highlight=False, markup=False, soft_wrap=True
    )


def _write(out: Path, text: str) -> None:
    """Whole or not at all. Raises InputError."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}", key="--out") from None


def _used_by(found: "Calibration") -> str:
    """With which setting of vllm the only fitted mode is run; nothing where none was."""
    modes = {line.mode for line in found.residuals}
    setting = {"synchronous": "false", "asynchronous": "true"}
    return "".join(f", with --set async_scheduling={setting[mode]}" for mode in modes)


def _require_free(out: Path, force: bool) -> None:
    """InputError where `out` is there and no profile, or is one and may not be overwritten."""
    from simulator.engines.profile import load_engine

    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise InputError(f"{out} exists; --force overwrites it", key="--out")
    try:
        if out.is_file() and not out.is_symlink():
            load_engine(str(out.resolve()))
            return
    except InputError:
        pass
    raise InputError(f"{out} exists and is no engine profile; choose another file", key="--out")


def residual_table(found: "Calibration") -> "Table":
    """Errors of predicted step times, a line a kind of step in each part of each log."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="predicted step times, error in %", title_justify="left")
    for column in ("log", "steps are", "kind"):
        table.add_column(column)
    for column in ("steps", "median", "median of |error|", "p95"):
        table.add_column(column, justify="right")
    before = None
    for line in found.residuals:
        place = (line.recording, "fitted to" if line.fitted else "held out")
        shown = ("", "") if place == before else place
        figures = (f"{line.steps:,}", f"{line.bias:+.1f}", f"{line.median:.1f}", f"{line.p95:.1f}")
        table.add_row(*shown, line.kind, *figures)
        before = place
    return table


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    from simulator.errors import run_command

    run_command(calibrate_engine, "calibrate-engine")
