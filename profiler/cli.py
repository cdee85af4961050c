"""`profile-gpu`: the command line. PyTorch is not imported here."""

import time
from collections.abc import Mapping
from pathlib import Path

import click

from profiler.options import DEFAULT_MODEL, Span, exit_statuses, model_options, output_options
from simulator import __version__
from simulator.errors import InputError

HELP = """Time a model's operators on this machine's GPU and write a cost table.

The table prices any batch of the model on this GPU: simulate-trace reads it, on machines without a GPU too.
Beside the CSV lies a YAML that says what was measured: GPU, driver, kernels, clocks, repeats, noise.

\b
Examples:
  profile-gpu --model llama-3.1-8b --out llama-3.1-8b.csv
  profile-gpu --model llama-13b --attention fa2 --out llama-13b@fa2.csv
  profile-gpu --model ./my-model/config.json --out my-model.csv --quick
  profile-gpu --model llama-3.1-8b --tp 2 --out llama-3.1-8b@tp2.csv
      what one of two tensor-parallel GPUs computes, on one GPU; their all-reduces are not timed
  profile-gpu --model llama-3.1-8b --out llama-3.1-8b.csv --resume
  profile-gpu --model llama-3.1-8b --out llama-3.1-8b.csv --budget 2m
  profile-gpu --report h200/llama-3.1-8b --decodes 64
  profile-gpu --add-power-limit llama-3.1-8b.csv
  profile-gpu --device cpu --out tiny.csv
      try the program without a GPU: a tiny model, PyTorch's attention, under a minute

\b
What is timed, one call in one layer, in microseconds (median, 10 % and 90 % quantile):
  qkv_proj, o_proj, mlp   by tokens: each multiple of 64 to 1024 and the token after it, then coarser, and both sides of
                          each cliff
  elementwise             by tokens: norms, rotary embedding, KV-cache write
  embedding               by tokens
  lm_head                 by sequences: final norm, LM head, greedy sampling; both sides of each cliff
  attention               chunk x context, decode batch x context, and chunks together with decodes

Each point is a CUDA graph of calls on different weights or KV pages, so that the L2 cache helps no more than
in a forward pass, replayed under load. The attention kernel is first compared with a reference. A whole table
takes a few minutes. Ctrl-C keeps what is measured in NAME.unfinished.csv; --resume goes on from there.

Cliffs, where one token more costs much more or less, are searched for by bisection, the largest first, and both
sides compared in turn until the step's size is known to about a per cent. The run ends with what they mean for chunk
sizes and token budgets, and with plots in NAME-plots. --report says and draws the same of a finished table.

Last, whole steps run in duty cycles, without a pause, with rests, and prompts among decodes, for 40 s at most: the YAML
gets what the GPU's power limit does to such steps (power_limit), or a note why not. That needs memory for the whole
model. --add-power-limit does only that, for a table that exists.

\b
Attention kernels:
  fa2    flash-attn (pip install flash-attn --no-build-isolation), KV pages of 256 tokens
  fa3    FlashAttention-3 as vLLM ships it (pip install vllm), Hopper GPUs, KV pages of 16 tokens
  torch  PyTorch's own; slow, for trying the program

Exit status: 0 done; 2 the input or the machine does not allow it, with one message; 1 anything else, Ctrl-C
included.
"""


DEFAULTS: dict[str, dict[str, int]] = {
    "cuda": {"max_tokens": 8192, "max_kv_tokens": 700_000},
    "cpu": {"max_tokens": 256, "max_kv_tokens": 4096},
}


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@model_options("time")
@click.option(
    "--out", metavar="PATH.csv", help="The table.  [default: the model's name (and @tp2 with --tp 2), in this folder]"
)
@click.option("--max-tokens", type=click.IntRange(min=1),
              help="Most tokens of a step.  [default: 8192; 256 on a CPU]")  # fmt: skip
@click.option("--max-kv-tokens", type=click.IntRange(min=64),
              help="Most KV-cache entries of one attention call.  [default: 700000; 4096 on a CPU]")  # fmt: skip
@click.option("--budget", type=Span(), metavar="TIME",
              help="Stop measuring after so long (120s, 2m, 90); the coarse points come first.")  # fmt: skip
@click.option("--quick", is_flag=True, help="The coarse points only, measured briefly.")
@output_options("an unfinished table, or of the one at --out", "table")
@click.option("--report", metavar="TABLE", help="Measure nothing: answer and plots of a finished table.")
@click.option("--add-power-limit", "completed", metavar="TABLE.csv",
              help="Measure only what the power limit does, for this table of this GPU; changes its YAML.")  # fmt: skip
@click.option("--decodes", type=click.IntRange(min=0), default=40, show_default=True,
              help="Running decodes that the closing advice on chunks assumes.")  # fmt: skip
@click.option("--plots", metavar="DIR", help="Where the plots go.  [default: NAME-plots beside the table]")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@click.option("--attention-version", metavar="TEXT",
              help="Recorded where the kernel's package does not tell its version.")  # fmt: skip
@click.version_option(__version__, prog_name="profile-gpu")
def main(
    model: str | None, out: str | None, report: str | None, completed: str | None, plots: str | None, **options: object
) -> None:
    started_s = time.monotonic()
    folder = None if plots is None else Path(plots)
    with exit_statuses("profile-gpu"):
        if report is not None:
            _report(report, folder, model, out, options)
            return
        if completed is not None:
            _add_power_limit(completed, model, out, options, started_s)
            return
        device = str(options["device"])
        for name, value in DEFAULTS[device].items():
            if options.get(name) is None:
                options[name] = value
        model = model or DEFAULT_MODEL[device]
        from profiler.run import profile  # pandas and pydantic, a second to load, are not for --help
        from profiler.run_setup import Options

        profile(Options(model=model, out=Path(out or default_out(model, options)), plots=folder, **options), started_s)  # type: ignore[arg-type]


def default_out(model: str, options: Mapping[str, object]) -> str:
    """`MODEL.csv`, the shard of two ranks `MODEL@tp2.csv`, as tables that ship are named."""
    ranks = options["tensor_parallel"]
    return f"{_name_of(model)}{'' if ranks == 1 else f'@tp{ranks}'}.csv"


def _report(table: str, plots: Path | None, model: str | None, out: str | None, options: dict[str, object]) -> None:
    from profiler.finish import report

    if model or out or options["resume"]:
        raise InputError("reads a finished table; --model, --out and --resume are for measuring one", key="--report")
    report(table, int(str(options["decodes"])), plots, bool(options["no_plots"]), bool(options["quiet"]))


def _add_power_limit(
    table: str, model: str | None, out: str | None, options: dict[str, object], started_s: float
) -> None:
    from profiler.power_only import Options, add_power_limit

    of_the_table = ("dtype", "max_tokens", "max_kv_tokens", "resume", "force", "attention_version")
    if model or out or options["tensor_parallel"] != 1 or any(options[name] for name in of_the_table):
        raise InputError(
            "takes model, type and sizes from the table; only --device, --attention, --budget, --quick and --quiet go"
            " with it",
            key="--add-power-limit",
        )
    used = {name: options[name] for name in ("device", "attention", "budget", "quick", "quiet")}
    add_power_limit(Options(Path(table), **used), started_s)  # type: ignore[arg-type]


def _name_of(model: str) -> str:
    """A known name as it is, a file by its stem, `config.json` by its folder."""
    path = Path(model)
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.stem if path.suffix in (".yaml", ".yml", ".json") else path.name
