"""Compares the prices of whole steps in two tables of one model, over random batches.

    python -m profiler.imports.steps h200/llama-3.1-8b imported.csv

Batches are of a chunk of 16 to 4096 tokens after up to 4096, of 1 to 256 decodes at 32 to 4096 entries (300,000 in all
at most), and of both; sizes are uniform in their logarithms.
"""

import sys
from collections.abc import Iterator
from statistics import median, quantiles

import click
import numpy as np

from simulator.cost_table import CostTable
from simulator.errors import InputError
from simulator.named_tables import find_table
from simulator.table_costs import TableCosts

KINDS = ("prefill", "decode", "hybrid")
MOST_ENTRIES = 300_000

Step = tuple[int, int, int, list[tuple[int, int]]]
"""Decodes, the sum and the longest of their contexts, and the chunks, as `TableCosts.step_ns` takes them."""


def batches(kind: str, count: int, rng: np.random.Generator) -> Iterator[Step]:
    """`count` random steps of a kind."""
    for _ in range(count):
        decodes = 0 if kind == "prefill" else int(2 ** rng.uniform(0, 8))
        context = min(int(2 ** rng.uniform(5, 12)), MOST_ENTRIES // max(1, decodes))
        chunk = (int(rng.choice([0, 0, 256, 1024, 4096])), int(2 ** rng.uniform(4, 12)))
        yield decodes, decodes * context, context if decodes else 0, [] if kind == "decode" else [chunk]


def differences(table: CostTable, other: CostTable, kind: str, count: int = 300, seed: int = 0) -> list[float]:
    """The price in `other` over that in `table`, less 1. Raises InputError where the models differ."""
    if table.metadata.model != other.metadata.model:
        raise InputError(f"is of {other.metadata.model.name}, not {table.metadata.model.name}", path=other.name)
    ours, theirs = TableCosts(table), TableCosts(other)
    steps = batches(kind, count, np.random.default_rng(seed))
    return [theirs.step_ns(*step) / ours.step_ns(*step) - 1 for step in steps]


def line(table: CostTable, other: CostTable, seed: int = 0) -> list[str]:
    """Of each kind: the median, the median of the sizes, and their 95th percentile."""
    cells = []
    for kind in KINDS:
        found = differences(table, other, kind, seed=seed)
        sizes = [abs(difference) for difference in found]
        cells.append(f"{median(found):+.1%} ({median(sizes):.1%}, p95 {quantiles(sizes, n=20)[-1]:.0%})")
    return cells


@click.command()
@click.argument("table")
@click.argument("other")
@click.option("--seed", default=0, show_default=True)
def main(table: str, other: str, seed: int) -> None:
    """Compare the step prices of OTHER with those of TABLE; names or CSVs."""
    try:
        cells = line(find_table(table), find_table(other), seed)
    except InputError as error:
        click.echo(f"steps: {error}", err=True)
        sys.exit(2)
    for kind, cell in zip(KINDS, cells, strict=True):
        click.echo(f"{kind}: {cell}")


if __name__ == "__main__":
    main()
