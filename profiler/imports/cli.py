"""`import-costs`: the command line."""

import shlex
import sys
from pathlib import Path

import click

from profiler.options import exit_statuses
from simulator import __version__

HELP = """Build a cost table for a GPU that you do not have.

SOURCE is one of:

\b
  datasheet       a model of the GPU: roofline with tile and wave quantization, fitted to published times
  aiconfigurator  measurements in the package aiconfigurator-core (pip install "chunkwise[imports]")
  FOLDER          measurements in Vidur's format: mlp.csv and, if it is there, attention.csv

simulate-trace reads the table as it reads a measured one. The YAML beside it says where the times come from; rows
with 0 repeats were not measured but come from the model, in the other two kinds of tables, too. Most of the half
minute goes into fitting the attention kernel's schedule to the rows.

\b
Examples:
  import-costs datasheet --gpu a100-80 --model llama-2-7b --out a100.csv
  import-costs datasheet --gpu a100-80 --model gpt3-175b --tp 8 --out gpt3@tp8.csv
  import-costs aiconfigurator --gpu h100 --model llama-3.1-8b --out h100.csv
  import-costs aiconfigurator --gpu a100-80 --engine vllm --model llama-3.1-8b --out a100.csv
  import-costs vidur/data/profiling/compute/a100/meta-llama/Llama-2-7b-hf --gpu a100-80 --model llama-2-7b --out v.csv

\b
GPUs: profiler/gpus/*.yaml, with their datasheets: a100-40, a100-80, a40, a6000, b200, h100, h200, l40s.
How far off the model is, by GPU and token count: docs/import-costs.md, or python -m profiler.imports.residuals.

Exit status: 0 done; 2 the input is wrong, with one message; 1 anything else.
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("source")
@click.option("--model", required=True, metavar="NAME_OR_PATH", help="A known model, a YAML, or a config.json.")
@click.option("--gpu", required=True, metavar="NAME", help="The GPU, such as a100-80.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True,
              help="Tensor-parallel degree: the table is one GPU's share.")  # fmt: skip
@click.option("--engine", type=click.Choice(["vllm", "sglang", "trtllm"]),
              help="Whose kernels, of aiconfigurator.  [default: the one with most token counts]")  # fmt: skip
@click.option("--flops-share", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="SHARE",
              help="What if (datasheet only): the GPU has that share of its FLOP/s, all of its bandwidth.")  # fmt: skip
@click.option("--out", metavar="PATH.csv", help="The table.  [default: MODEL-GPU.csv, with --tp N MODEL-GPU@tpN.csv]")
@click.option("--force", is_flag=True, help="Overwrite an existing table.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.version_option(__version__, prog_name="import-costs")
def main(**options: str | int | bool | None) -> None:
    from profiler.imports.run import Options, import_costs  # pandas and duckdb are not for --help

    with exit_statuses("import-costs"):
        import_costs(Options(**options, command=_command()))  # type: ignore[arg-type]


def _command() -> str:
    """The command line that repeats this, paths by their last part."""
    return shlex.join(["import-costs", *(Path(word).name if "/" in word else word for word in sys.argv[1:])])
