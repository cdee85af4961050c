"""`profile-gpu`: the command line. PyTorch is not imported here."""

import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import click

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

\b
Attention kernels:
  fa2    flash-attn (pip install flash-attn --no-build-isolation), KV pages of 256 tokens
  fa3    FlashAttention-3 as vLLM ships it (pip install vllm), Hopper GPUs, KV pages of 16 tokens
  torch  PyTorch's own; slow, for trying the program

Exit status: 0 done; 2 the input or the machine does not allow it, with one message; 1 anything else, Ctrl-C
included.
"""


DEFAULTS: dict[str, dict[str, str | int]] = {
    "cuda": {"model": "llama-3.1-8b", "max_tokens": 8192, "max_kv_tokens": 700_000},
    "cpu": {"model": "tiny", "max_tokens": 256, "max_kv_tokens": 4096},
}


class Span(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Seconds as `90`, `120s`, `2m` or `1h`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*(s|m|min|h)?\s*", str(value))
        if found is None:
            self.fail(f"{value!r} is no time; write 120s, 2m or plain seconds", param, ctx)
        return float(found[1]) * {"m": 60, "min": 60, "h": 3600}.get(found[2], 1)


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--model", metavar="NAME_OR_PATH",
              help="A known model, a YAML, or a config.json.  [default: llama-3.1-8b; tiny on a CPU]")  # fmt: skip
@click.option(
    "--out", metavar="PATH.csv", help="The table.  [default: the model's name (and @tp2 with --tp 2), in this folder]"
)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
              help="cpu: try the program without a GPU.")  # fmt: skip
@click.option("--attention", type=click.Choice(["auto", "fa2", "fa3", "torch"]), default="auto",
              show_default=True, help="The kernel to time; auto: fa3 where it runs, else fa2.")  # fmt: skip
@click.option("--tp", "--tensor-parallel", "tensor_parallel", type=click.IntRange(min=1), default=1,
              show_default=True, metavar="RANKS",
              help="Time the shapes of one of so many tensor-parallel ranks.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]),
              help="Of weights, activations and KV cache.  [default: bfloat16; float32 on a CPU]")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1),
              help="Most tokens of a step.  [default: 8192; 256 on a CPU]")  # fmt: skip
@click.option("--max-kv-tokens", type=click.IntRange(min=64),
              help="Most KV-cache entries of one attention call.  [default: 700000; 4096 on a CPU]")  # fmt: skip
@click.option("--budget", type=Span(), metavar="TIME",
              help="Stop measuring after so long (120s, 2m, 90); the coarse points come first.")  # fmt: skip
@click.option("--quick", is_flag=True, help="The coarse points only, measured briefly.")
@click.option("--resume", is_flag=True, help="Keep the rows of an unfinished table, or of the one at --out.")
@click.option("--force", is_flag=True, help="Overwrite an existing table.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--report", metavar="TABLE", help="Measure nothing: answer and plots of a finished table.")
@click.option("--decodes", type=click.IntRange(min=0), default=40, show_default=True,
              help="Running decodes that the closing advice on chunks assumes.")  # fmt: skip
@click.option("--plots", metavar="DIR", help="Where the plots go.  [default: NAME-plots beside the table]")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@click.option("--attention-version", metavar="TEXT",
              help="Recorded where the kernel's package does not tell its version.")  # fmt: skip
def main(model: str | None, out: str | None, report: str | None, plots: str | None, **options: object) -> None:
    started_s = time.monotonic()
    folder = None if plots is None else Path(plots)
    if report is not None:
        _report(report, folder, model, out, options)
        return
    for name, value in DEFAULTS[str(options["device"])].items():
        if options.get(name) is None and name != "model":
            options[name] = value
    model = model or str(DEFAULTS[str(options["device"])]["model"])
    from profiler.run import Options, profile  # pandas and pydantic, a second to load, are not for --help

    signal.signal(signal.SIGTERM, _interrupt)  # a job that is stopped by its time limit keeps its rows too
    try:
        profile(Options(model=model, out=Path(out or default_out(model, options)), plots=folder, **options), started_s)  # type: ignore[arg-type]
    except InputError as error:
        click.echo(f"profile-gpu: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt as error:
        click.echo(f"profile-gpu: interrupted{f'; {error}' if str(error) else ''}", err=True)
        sys.exit(1)


def default_out(model: str, options: Mapping[str, object]) -> str:
    """`MODEL.csv`, the shard of two ranks `MODEL@tp2.csv`, as tables that ship are named."""
    ranks = options["tensor_parallel"]
    return f"{_name_of(model)}{'' if ranks == 1 else f'@tp{ranks}'}.csv"


def _report(table: str, plots: Path | None, model: str | None, out: str | None, options: dict[str, object]) -> None:
    from profiler.finish import report

    try:
        if model or out or options["resume"]:
            raise InputError(
                "reads a finished table; --model, --out and --resume are for measuring one", key="--report"
            )
        report(table, int(str(options["decodes"])), plots, bool(options["no_plots"]), bool(options["quiet"]))
    except InputError as error:
        click.echo(f"profile-gpu: {error}", err=True)
        sys.exit(2)


def _name_of(model: str) -> str:
    """A known name as it is, a file by its stem, `config.json` by its folder."""
    path = Path(model)
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.stem if path.suffix in (".yaml", ".yml", ".json") else path.name


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    raise KeyboardInterrupt
