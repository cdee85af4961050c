"""The command `compare-runs`. Heavy modules are imported only once the command line is known to be sound."""

import shlex
import sys
from pathlib import Path

import click

from simulator import __version__

EPILOG = """\b
Examples:
  compare-runs measured/ out/vllm
      a measured folder against the policy "vllm" of an output folder of simulate-trace
  compare-runs bench.json out --label vllm --out compared
      a result of vllm bench serve; errors.csv, compare.md and plots in compared/
  compare-runs 'results.jsonl#2' 'results.jsonl#3'
      two runs of one file
  compare-runs steps.csv.gz out/vllm --costs h200/llama-3.1-8b
      a step log alone: step times against prices, and what the batches held

\b
MEASURED is the reference; an error is (SIMULATED - MEASURED) / MEASURED. Either may be any of:
  a folder with run.json and requests.csv (and token_times.jsonl.gz, steps.csv.gz), a steps.csv.gz,
  an output folder of simulate-trace (FOLDER/LABEL), the result of vllm bench serve --save-result, a line of
  SGLang's bench_serving, AIPerf's profile_export.jsonl or profile_export_aiperf.json, GuideLLM's benchmarks.json.
Formats are recognised by content. Files with detail of each request give every figure; aggregates are compared
only where the tool's definition is ours, and what is not comparable is named.

\b
Definitions: ttft = first token - arrival; itl = every gap between two tokens of a request, pooled; tpot =
(finish - first token) / (output tokens - 1); e2e = finish - arrival; percentiles linear-interpolated.
Exit status: 0 done, 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("measured")
@click.argument("simulated")
@click.option("--label", metavar="LABEL", help="The policy, where an output folder holds several.")
@click.option("--index", type=click.IntRange(1), metavar="N",
              help="The N-th run, where a file holds several. [default: the last]")  # fmt: skip
@click.option("--costs", metavar="TABLE",
              help="Cost table for the steps of MEASURED's log. [default: the experiment's]")  # fmt: skip
@click.option("--engine", metavar="PROFILE", help="Engine profile for them. [default: likewise]")
@click.option("--tensor", type=click.IntRange(1), metavar="N",
              help="Tensor-parallel GPUs; chooses the cost table of one of N ranks.")  # fmt: skip
@click.option("--network", metavar="NETWORK", help="What joins them. [default: the experiment's, or by the GPU]")
@click.option("--worst", type=click.IntRange(0, 10_000), default=10, show_default=True, metavar="N",
              help="How many of the worst steps to name.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write tables, plots and compare.md.")
@click.option("--force", is_flag=True, help="Overwrite the files of an earlier comparison in DIR.")
@click.option("--no-plots", is_flag=True, help="Write no plots.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors and warnings.")
@click.version_option(__version__, prog_name="compare-runs")
def compare_runs(
    measured: str,
    simulated: str,
    label: str | None,
    index: int | None,
    costs: str | None,
    engine: str | None,
    tensor: int | None,
    network: str | None,
    worst: int,
    out: Path | None,
    force: bool,
    no_plots: bool,
    quiet: bool,
) -> None:
    """Compare two runs of one workload, usually a measured and a simulated one, by like-for-like definitions.

    Prints the figures of both and their errors; where the same requests are in both files, the errors of single
    requests; where MEASURED has a step log and a price is known, how far step prices are off by kind of batch; and
    where both sides have steps, how alike the batches are.
    """
    from simulator.compare.comparison import compare
    from simulator.compare.output import prepare_folder, write_tables, write_text
    from simulator.compare.page import page
    from simulator.compare.prices import PriceOptions, find_price
    from simulator.compare.readers import read_run

    reference, other = read_run(measured, label, index), read_run(simulated, label, index)
    price = find_price((reference, other), PriceOptions(costs, engine, tensor, network))
    comparison = compare(reference, other, price)
    for warning in comparison.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if out is not None:
        prepare_folder(out, force=force)
        write_tables(comparison, out, worst)
        drawn: list[str] = []
        if not no_plots:
            from simulator.compare.plots import write_plots

            drawn = write_plots(comparison, out)
        made_by = f"`{shlex.join(['compare-runs', *sys.argv[1:]])}`, chunkwise {__version__}"
        write_text(out / "compare.md", page(comparison, drawn, worst, made_by))
    if not quiet:
        _print(comparison, out)


def _print(comparison: object, out: Path | None) -> None:
    from rich.console import Console

    from simulator.compare.comparison import Comparison
    from simulator.compare.terminal import lines, tables
    from simulator.printing import print_table

    assert isinstance(comparison, Comparison)
    console = Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 110)
    for table in tables(comparison):
        print_table(console, table)
        console.print()
    for line in [*lines(comparison), *([f"written to {out}"] if out is not None else [])]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    import os

    from simulator.errors import run_command

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here multiplies matrices
    run_command(compare_runs, "compare-runs")
