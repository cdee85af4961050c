"""Compares the matrix products of a measured table with aiconfigurator-core's at the same m, n and k.

    python -m profiler.imports.compare h200/llama-3.1-8b

Rows whose (n, k) the package measured are compared as they are; an `mlp` row, which holds both products and the
activation, with the sum of two, interpolated in n and k where they were not measured, and without the activation. Then
the steps between the same two token counts: from t to t + 1 where both sides have them, otherwise between neighbours.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import click

from profiler.grid import LINEAR_OPERATORS
from profiler.imports.datasheet import gpu_names, load_hardware
from profiler.imports.roofline import products
from profiler.imports.silicon import Silicon
from profiler.imports.silicon_source import SiliconSource
from profiler.imports.table import roofline_of
from simulator.cost_table import CostTable
from simulator.errors import InputError
from simulator.named_tables import find_table

LEAST, MOST = 4096, 16384
RANGES = ((1, 64), (65, 512), (513, 2049), (2050, 16384))
CLIFF = 0.03


@dataclass(frozen=True)
class Compared:
    """Times of one operator by tokens, both measured, microseconds: the table's and the package's.

    `exact`: (n, k) was measured by the package, within LEAST to MOST.
    """

    operator: str
    exact: bool
    times: dict[int, tuple[float, float]]

    @property
    def differences(self) -> list[float]:
        """The table's time over the package's, less 1."""
        return [ours / theirs - 1 for ours, theirs in self.times.values()]

    def steps(self) -> Iterator[tuple[int, int, float, float]]:
        """Between neighbouring tokens of both: from, to, and the growth that each saw."""
        for low, high in pairwise(sorted(self.times)):
            (ours, theirs), (ours_after, theirs_after) = self.times[low], self.times[high]
            yield low, high, ours_after / ours - 1, theirs_after / theirs - 1


def compare(table: CostTable, engine: str) -> list[Compared]:
    """Each linear operator of the table. Raises InputError where the package lacks the GPU."""
    metadata = table.metadata
    found = [name for name in gpu_names() if load_hardware(name).gpu.name == metadata.gpu.name]
    if not found or load_hardware(found[0]).sheet.silicon is None:
        raise InputError(f"aiconfigurator-core has no measurements of {metadata.gpu.name}", path=table.name)
    hardware = load_hardware(found[0])
    silicon = Silicon(str(hardware.sheet.silicon), engine)
    source = SiliconSource(roofline_of(metadata.model, metadata.tensor_parallel, hardware), silicon)
    sizes = products(metadata.model.shard(metadata.tensor_parallel))
    measured = silicon.gemm_us()
    frame, compared = table.frame(), []
    for operator in LINEAR_OPERATORS:
        rows = frame[(frame["operator"] == operator) & (frame["repeats"] > 0)]
        times = {}
        for tokens, ours in zip(rows["tokens"].tolist(), rows["time_us"].tolist(), strict=True):
            theirs = source.product_us(operator, tokens)
            if theirs is not None:
                times[tokens] = (ours, theirs)
        exact = all(size in measured and all(LEAST <= side <= MOST for side in size) for size in sizes[operator])
        compared.append(Compared(operator, exact, times))
    return compared


def report(table: CostTable, engine: str) -> str:
    """Differences by operator, and the steps that either side saw as a cliff."""
    lines = [
        f"{table.name} against aiconfigurator-core, {engine}: time of the table over time of the package",
        "",
        "| operator | n, k | token counts | median | median absolute | least | most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    compared = compare(table, engine)
    sizes = products(table.metadata.model.shard(table.metadata.tensor_parallel))
    for one in compared:
        shown = ", ".join(f"{n} x {k}" for n, k in sizes[one.operator])
        remark = (
            "" if one.exact else " (interpolated; without activation)" if one.operator == "mlp" else " (interpolated)"
        )
        lines.append(f"| {one.operator} | {shown}{remark} | {_spread(one.differences)} |")
    exact = [time for one in compared if one.exact for time in one.times.items()]
    for low, high in ((1, MOST), *RANGES):
        differences = [ours / theirs - 1 for tokens, (ours, theirs) in exact if low <= tokens <= high]
        which = "all" if (low, high) == (1, MOST) else f"{low} to {high}"
        lines.append(f"| same n, k in {LEAST} to {MOST}, {which} tokens | | {_spread(differences)} |")
    lines += ["", f"Steps from t to t + 1 tokens of {CLIFF:.0%} or more on either side:", ""]
    lines += ["| operator | tokens | table | package | |", "| --- | --- | --- | --- | --- |"]
    lines += [line for one in compared for line in _cliff_lines(one)]
    return "\n".join(lines)


def _spread(differences: list[float]) -> str:
    if not differences:
        return "0 | | | |"
    sizes = [abs(difference) for difference in differences]
    edges = f"{min(differences):+.0%} | {max(differences):+.0%}"
    return f"{len(differences)} | {median(differences):+.1%} | {median(sizes):.1%} | {edges}"


def _cliff_lines(one: Compared) -> Iterator[str]:
    for low, high, ours, theirs in one.steps():
        if high == low + 1 and max(abs(ours), abs(theirs)) >= CLIFF:
            both = min(abs(ours), abs(theirs)) >= CLIFF and ours * theirs > 0
            yield f"| {one.operator} | {low} -> {high} | {ours:+.1%} | {theirs:+.1%} | {'both' if both else ''} |"


@click.command()
@click.argument("table")
@click.option("--engine", type=click.Choice(["vllm", "sglang", "trtllm"]), default="vllm", show_default=True)
def main(table: str, engine: str) -> None:
    """Compare the matrix products of TABLE, a name or a CSV, with aiconfigurator-core's."""
    try:
        click.echo(report(find_table(table), engine))
    except InputError as error:
        click.echo(f"compare: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
