"""The command `price-batches`: what batches cost according to a cost table, without a GPU."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simulator import __version__
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.batch_file import BatchFile, ListedBatch
    from simulator.cost_table import CostTable
    from simulator.table_costs import TableCosts

COLUMNS = ("id", "tokens", "num_prefills", "num_decodes", "gpu_s", "gpu_low_s", "gpu_high_s", "in_grid")

EPILOG = """\b
Examples:
  price-batches batches.jsonl --costs h200/llama-3.1-8b --out priced.csv
  price-batches batches.jsonl --costs mine.csv --out priced.csv --force
  price-batches batches.jsonl --costs h200/llama-3.1-8b --tensor 2 --out priced.csv
      the steps of one of two tensor-parallel GPUs, without what they exchange
  measure-batches batches.jsonl --model llama-3.1-8b --out measured.csv
      the same batches run on a GPU, to see how right the prices are

\b
A line of BATCHES.jsonl:
  {"id": "b17", "prefills": [[context_before, new_tokens], ...], "decodes": [context_length_after, ...]}
  A decode of 121 attends to 121 KV entries, its own new token's included.
  A line has at most 1,000,000 characters.

\b
Columns: id, tokens (of the step), num_prefills, num_decodes, gpu_s (the whole model's GPU time in seconds:
embedding, layers, LM head on the last position of each sequence, greedy sampling), gpu_low_s and gpu_high_s (what
the table's noise and the errors of its attention model leave open; empty where it has none), in_grid (1 if the table's
measurements surround the batch, 0 if their trend had to be continued).
Exit status: 0 done, 2 the input is wrong, 1 anything else.
"""


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.argument("batches", metavar="BATCHES.jsonl", type=click.Path(path_type=Path))
@click.option("--costs", required=True, metavar="TABLE",
              help="Cost table: a bundled name such as h200/llama-3.1-8b, or the path of a CSV.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="PATH.csv", help="The prices.")
@click.option("--tensor", type=click.IntRange(min=1), metavar="N",
              help="Tensor-parallel GPUs; chooses the cost table of one of N ranks.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.version_option(__version__, prog_name="price-batches")
def price_batches(batches: Path, costs: str, out: Path, tensor: int | None, force: bool, quiet: bool) -> None:
    """Price batches from a cost table, each as one step, exactly as simulate-trace does."""
    from simulator.batch_file import read_batches
    from simulator.named_tables import find_table
    from simulator.table_costs import TableCosts

    file = read_batches(batches)
    table = find_table(costs, tensor_parallel=tensor)
    _require_free(out, {"the file of batches": batches, "the cost table": Path(table.name)}, force)
    prices = TableCosts(table)
    priced = [price_of(prices, batch) for batch in file.batches]
    _write(out, zip(file.batches, priced, strict=True))
    if not quiet:
        print("\n".join(_summary(file, table, priced)))


def main() -> None:
    """Entry point: user errors as one line, exit status 2."""
    from simulator.errors import run_command

    run_command(price_batches, "price-batches")


@dataclass(frozen=True, slots=True)
class Price:
    """GPU time of a step in nanoseconds, and its interval if the table has one.

    `in_grid`: no measured trend was continued for it.
    """

    gpu_ns: int
    interval_ns: tuple[int, int] | None
    in_grid: bool


def price_of(costs: "TableCosts", batch: "ListedBatch") -> Price:
    """The price of a batch run as one step."""
    grid, decodes = costs.grid, len(batch.decodes)
    in_grid = (
        batch.tokens <= grid.tokens
        and batch.sequences <= grid.sequences
        and max((context for context, _ in batch.prefills), default=0) <= grid.prefill_context
        and decodes <= grid.decodes
        and max(batch.decodes, default=0) <= grid.decode_context
        and batch.decode_context <= grid.decode_contexts
    )
    work = (decodes, batch.decode_context, max(batch.decodes, default=0), batch.prefills)
    return Price(costs.step_ns(*work), costs.interval_ns(*work), in_grid)


def _require_free(out: Path, read: dict[str, Path], force: bool) -> None:
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file", key="--out")
    for what, path in read.items():
        if out.exists() and path.exists() and out.samefile(path):
            raise InputError(f"{out} is {what}", key="--out")
    if out.exists() and not force:
        raise InputError(f"{out} exists; --force overwrites it", key="--out")


def _write(out: Path, priced: "Iterable[tuple[ListedBatch, Price]]") -> None:
    """The CSV, whole or not at all. InputError where the place cannot be written to."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for batch, price in priced:
        counts = (batch.tokens, len(batch.prefills), len(batch.decodes))
        interval = (f"{end / 1e9:.9f}" for end in price.interval_ns) if price.interval_ns else ("", "")
        writer.writerow((batch.id, *counts, f"{price.gpu_ns / 1e9:.9f}", *interval, int(price.in_grid)))
    partial = out.with_name(f"{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text.getvalue(), encoding="utf-8", newline="")
        partial.replace(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}", key="--out") from None


def _summary(file: "BatchFile", table: "CostTable", priced: list[Price]) -> list[str]:
    made, total_s = table.metadata, sum(price.gpu_ns for price in priced) / 1e9
    where = f"{made.model.name} on {made.gpu.name}, attention {made.attention.backend}"
    lines = [f"{len(priced)} batches, {total_s:.6f} s in all at the costs of {table.name} ({where})"]
    outside = [batch.id for batch, price in zip(file.batches, priced, strict=True) if not price.in_grid]
    if outside:
        shown = ", ".join(outside[:5]) + (", ..." if len(outside) > 5 else "")
        lines.append(f"{len(outside)} of them outside the measured grid, where its trend is continued: {shown}")
    if made.tensor_parallel > 1:
        lines.append(f"prices of one of {made.tensor_parallel} ranks, without the all-reduces between them")
    return lines
