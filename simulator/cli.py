"""The command `simulate-trace`. Heavy modules are imported only once the command line is known to be sound."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator import __version__
from simulator.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.experiment import Experiment
    from simulator.policy_runs import PolicyRun
    from simulator.results import PolicyResult
    from simulator.runner import OnStep
    from simulator.trace import Trace

EPILOG = """\b
Examples:
  simulate-trace
      the bundled trace through orca, sarathi and vllm
  simulate-trace policies/all.yaml
      the bundled trace through every scheduler
  simulate-trace mytrace.csv --policy vllm --set max_num_batched_tokens=2048
  simulate-trace mytrace.csv --policy vllm --policy vllm \\
      --set vllm-2.max_num_batched_tokens=512 --out compare --force
  simulate-trace mytrace.csv --policy my_policies:ShortestFirst
  simulate-trace --policy vllm --policy my-pools.yaml
      two GPUs, for prompts and for decodes; in my-pools.yaml
      disaggregated: {prefill: {policy: vllm}, decode: {policy: vllm}}
  simulate-trace compare/experiment.yaml --out again
      repeat a run, byte for byte

\b
Units are seconds and tokens. ttft = first token - arrival; itl = every gap between two consecutive tokens of
a request, pooled; tpot = (finish - first token) / (output tokens - 1); queue = first scheduled - arrival.
Exit status: 0 done, 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("source", metavar="[TRACE or EXPERIMENT.yaml]", required=False)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME_OR_YAML",
    help="A policy to run: its name, a YAML with its options, or package.module:Class. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[LABEL.]KEY=VALUE",
    help="Set an option of one policy, or of all that have it. Repeatable.",
)
@click.option(
    "--costs",
    metavar="TABLE",
    help="Cost table: a bundled name such as h200/llama-3.1-8b, or the path of a CSV.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Model, if the cost table should be checked against it: a name, YAML or config.json.",
)
@click.option(
    "--engine",
    metavar="PROFILE",
    help="What the engine's host adds: a bundled profile such as vllm-0.23, or the path of a YAML."
    " [default: none, GPU time only]",
)
@click.option("--tensor", type=int, metavar="N", help="Tensor-parallel GPUs; chooses the cost table of one of N ranks.")
@click.option("--pipeline", type=int, metavar="N", help="Pipeline stages, each with a part of the layers.")
@click.option("--replicas", type=int, metavar="N", help="Copies of the model; the `router` shares out the requests.")
@click.option(
    "--network",
    metavar="NAME",
    help="What joins the GPUs: a bundled network such as h200-nvlink, or the path of a YAML. [default: by the GPU]",
)
@click.option(
    "--num-blocks",
    type=int,
    metavar="N",
    help="KV-cache blocks of `kv_cache.block_size` tokens (16 unless an experiment says otherwise).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output folder. [default: results/TRACE-TIME]",
)
@click.option("--force", is_flag=True, help="Overwrite the files of an earlier run in a non-empty DIR.")
@click.option("--limit", type=int, metavar="N", help="Only the first N requests.")
@click.option("--speedup", type=float, metavar="X", help="Arrivals X times as dense.")
@click.option(
    "--repair",
    is_flag=True,
    default=None,
    help="Sort unsorted arrivals and drop rows without tokens, instead of refusing the trace.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of everything random.")
@click.option(
    "--jobs", type=click.IntRange(1), default=1, metavar="N", help="Policies to run in parallel. [default: 1]"
)
@click.option("--no-plots", is_flag=True, help="Write no plots.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option(
    "--list",
    "listing",
    type=click.Choice(["policies", "costs", "models", "engines", "networks", "formats"]),
    help="List what is available, and stop.",
)
@click.version_option(__version__, prog_name="simulate-trace")
def simulate_trace(listing: str | None, **options: Any) -> None:
    """Replay a request trace through LLM-inference schedulers at measured step costs.

    Writes summary.csv, requests.csv, iterations.csv and itl_quantiles.csv of each policy, comparison plots, report.html
    and an experiment.yaml that repeats the run. Without arguments runs the bundled example. Command-line options
    override those of an experiment YAML.
    """
    if listing:
        from simulator.listing import print_listing

        print_listing(listing)
        return
    _run(**options)


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    from simulator.errors import run_command

    # Nothing here multiplies matrices, and numpy's threads for it cost a tenth of a second before they idle.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    run_command(simulate_trace, "simulate-trace")


def _run(
    source: str | None,
    out: Path | None,
    force: bool,
    jobs: int,
    no_plots: bool,
    no_report: bool,
    quiet: bool,
    settings: Sequence[str],
    **overrides: Any,
) -> None:
    from rich.console import Console

    from simulator.output import prepare_folder, write_experiment, write_run, write_summary
    from simulator.runner import load_trace, provenance, run_policies

    console = Console(quiet=quiet, width=None if sys.stdout is not None and sys.stdout.isatty() else 110)
    experiment = _experiment(source, overrides, settings)
    trace = load_trace(experiment)
    folder = out if out is not None else _default_folder(trace)
    inputs = [experiment.trace, *([Path(experiment.costs)] if isinstance(experiment.costs, str) else [])]
    prepare_folder(folder, [run.label for run in experiment.policies], inputs, force=force)
    made = provenance(experiment, trace, shlex.join(["simulate-trace", *sys.argv[1:]]))
    for note in made["notes"]:
        _say(console, f"note: {note}")
    keys = _write_first(folder, experiment, made, write_experiment)
    by_label: dict[str, PolicyResult] = {}
    with _Progress(console, experiment, len(trace)) as progress:
        for result in run_policies(experiment, trace, jobs, progress.on_step):
            write_run(folder, result)
            by_label[result.label] = result
            progress.finished(result.label)
            write_summary(folder, [by_label[run.label] for run in experiment.policies if run.label in by_label])
    results = [by_label[run.label] for run in experiment.policies]
    _report(console, folder, results, experiment, trace, keys, plots=not no_plots, page=not no_report)


def _experiment(source: str | None, overrides: dict[str, Any], settings: Sequence[str]) -> "Experiment":
    """The experiment of the YAML or trace `source`, with the command line's overrides."""
    from simulator.bundled import resolve
    from simulator.experiment_keys import resolve_experiment
    from simulator.files import load_yaml

    raw: dict[str, Any] = {}
    path = None
    if source is not None and source.lower().endswith((".yaml", ".yml")):
        path = resolve(source)
        if path is None:
            raise InputError(f'experiment "{source}" not found')
        raw = load_yaml(path)
    elif source is not None:
        raw["trace"] = source
    for key in ("costs", "model", "engine", "network", "limit", "speedup", "repair", "seed"):
        if overrides.get(key) is not None:
            raw[key] = overrides[key]
    if overrides["policies"]:
        raw["policies"] = list(overrides["policies"])
    for option, section in (
        ("num_blocks", "kv_cache"),
        *((degree, "parallel") for degree in ("tensor", "pipeline", "replicas")),
    ):
        if overrides[option] is not None:
            keys = raw.get(section)
            raw[section] = {**(keys if isinstance(keys, dict) else {}), option: overrides[option]}
            if option == "pipeline":  # the file's are for another number of stages
                raw[section].pop("pipeline_layers", None)
    if overrides["network"] is not None:
        raw.pop("pipeline_network", None)
    return resolve_experiment(raw, path=path, settings=settings)


def _default_folder(trace: "Trace") -> Path:
    from datetime import datetime

    name = f"{trace.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = Path("results") / name, 2
    while folder.exists():
        folder, number = Path("results") / f"{name}-{number}", number + 1
    return folder


def _write_first(
    folder: Path,
    experiment: "Experiment",
    made: dict[str, Any],
    write: Callable[[Path, dict[str, Any]], None],
) -> dict[str, Any]:
    """`experiment.yaml` before the run, so that an interrupted one says what it was."""
    from simulator.experiment import as_yaml_keys

    keys = {**as_yaml_keys(experiment), "provenance": made}
    write(folder, keys)
    return keys


def _report(
    console: "Console",
    folder: Path,
    results: "list[PolicyResult]",
    experiment: "Experiment",
    trace: "Trace",
    keys: dict[str, Any],
    *,
    plots: bool,
    page: bool,
) -> None:
    from simulator.experiment import parallel_in_words
    from simulator.printing import print_table
    from simulator.report.terminal import notes, remarks, summary_table

    costs = experiment.costs if isinstance(experiment.costs, str) else "linear (analytic)"
    costs += parallel_in_words(experiment.parallel)
    if plots or page:
        from simulator.report.plots import write_plots

        with console.status("drawing"):
            drawn = write_plots(results, folder, trace.name, costs, experiment.engine) if plots else []
            if page:
                from simulator.report.page import write_page

                write_page(results, folder, keys, drawn)
    print_table(console, summary_table(results, width=console.width))
    for line in (*remarks(results), *notes(results)):
        _say(console, line)
    engine = "" if experiment.engine == "none" else f", engine {experiment.engine}"
    _say(console, f"{len(trace)} requests of {trace.name}, costs {costs}{engine}; written to {folder}")


def _say(console: "Console", line: str) -> None:
    """A line as it is: users' names may hold anything, and where it wraps is the terminal's business."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


class _Progress:
    """A bar for each policy: requests that have ended. Nothing where the output is no terminal."""

    def __init__(self, console: "Console", experiment: "Experiment", requests: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal or console.quiet
        )
        self._requests = requests
        self._tasks = {run.label: self._bars.add_task(run.label, total=requests) for run in experiment.policies}

    def __enter__(self) -> "_Progress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def on_step(self, run: "PolicyRun") -> "OnStep | None":
        """What the engine calls after each step; it looks at the clock's worth of work only every 1024 steps."""
        if self._bars.disable:
            return None
        task = self._tasks[run.label]

        def update(scheduler: Any) -> None:
            if not scheduler.iterations & 1023:
                self._bars.update(task, completed=scheduler.ended)

        return update

    def finished(self, label: str) -> None:
        """Fill the bar of one policy."""
        self._bars.update(self._tasks[label], completed=self._requests)
