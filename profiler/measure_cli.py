"""`measure-batches`: the command line. PyTorch is not imported here."""

import sys
import time
from pathlib import Path

import click

from profiler.options import DEFAULT_MODEL, Span, exit_statuses, model_options, output_options
from simulator import __version__

HELP = """Run batches as whole forward passes of a model on this machine's GPU, and write their times.

price-batches prices the same file from a cost table: the two together say how right the table is.

\b
Examples:
  measure-batches batches.jsonl --model llama-3.1-8b --out measured.csv
  measure-batches batches.jsonl --model llama-13b --attention fa2 --max-kv-tokens 120000 --out measured.csv
  measure-batches batches.jsonl --model llama-3.1-8b --out measured.csv --budget 120s
  measure-batches batches.jsonl --model llama-3.1-8b --out measured.csv --resume
  measure-batches batches.jsonl --model llama-3.1-8b --out measured.csv --verify
      first show that prefill in chunks computes what prefill at once does
  measure-batches batches.jsonl --device cpu --out tiny.csv
      try the program without a GPU: a tiny model, PyTorch's attention

\b
A line of BATCHES.jsonl:
  {"id": "b17", "prefills": [[context_before, new_tokens], ...], "decodes": [context_length_after, ...]}
  A decode of 121 attends to 121 KV entries, its own new token's included.
  A line has at most 1,000,000 characters.

A step is embedding, all layers with weights and a paged KV cache of their own (random numbers in the model's
shapes), final norm and LM head on the last position of each sequence, and greedy sampling; decodes first, then
chunks, exactly as many tokens as the batch has (no padding to sizes of captured graphs), each sequence on pages
drawn at random. With --tp it is one rank's, and what ranks exchange is not in the time.

\b
Columns:
  id, tokens, num_prefills, num_decodes
  gpu_s, gpu_p10_s, gpu_p90_s   the GPU's time for the step in seconds: median, 10 % and 90 % quantile
  host_s                        the host's time to launch the step eagerly, without waiting for the GPU
  repeats, sm_mhz               samples, and the SM clock meanwhile

gpu_s is that of replays of one CUDA graph of the whole step. Before each the GPU rests for half a step's time,
so that times repeat: replayed without a pause, steps of long prefills lower the clocks of a GPU at its power
limit and take up to 12 % longer (H200). With --eager each repeat is launched
from Python, after the GPU has come to rest, and gpu_s includes its pauses to wait for the host.

Rows are written as they are measured; a YAML beside them says how. A batch that memory does not suffice for has no
row: it is named with the reason, noted in the YAML and counted in the closing line. Only where no batch fits is the
file refused.

Exit status: 0 done; 2 the input or the machine does not allow it, with one message; 1 anything else, a failed
--verify and Ctrl-C included.
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("batches", metavar="BATCHES.jsonl", type=click.Path(path_type=Path))
@model_options("run")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="PATH.csv", help="The times.")
@click.option("--eager", is_flag=True, help="Launch from Python instead of a CUDA graph.")
@click.option("--max-kv-tokens", type=click.IntRange(min=1), metavar="N",
              help="Skip batches of more KV entries, each sequence rounded up to whole pages."
              "  [default: a cache for the largest]")  # fmt: skip
@click.option("--budget", "--limit-seconds", "budget", type=Span(), metavar="TIME",
              help="Start no further batch after so long (120s, 2m, 90).")  # fmt: skip
@click.option("--verify", is_flag=True,
              help="First check chunked against unchunked prefill, and the mask; exit 1 if that fails.")  # fmt: skip
@output_options("an earlier run at --out", "file")
@click.version_option(__version__, prog_name="measure-batches")
def measure_batches(batches: Path, model: str | None, **options: object) -> None:
    started_s = time.monotonic()
    with exit_statuses("measure-batches"):
        from profiler.measure import measure  # pydantic and numpy, a second to load, are not for --help
        from profiler.measure_setup import Options
        from profiler.verify import VerificationError

        model = model or DEFAULT_MODEL[str(options["device"])]
        try:
            measure(Options(batches=batches, model=model, **options), started_s)  # type: ignore[arg-type]
        except VerificationError as error:
            click.echo(f"measure-batches: --verify failed, nothing was measured: {error}", err=True)
            sys.exit(1)


def main() -> None:
    """Entry point."""
    measure_batches(prog_name="measure-batches")
