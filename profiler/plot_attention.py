"""Attention surfaces: time of a call by chunk and context, and by decodes and their context."""

from collections.abc import Collection

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from profiler.chunk_jumps import chunk_jumps
from simulator.cost_table import CostTable
from simulator.report.style import INK, new_figure, no_data
from simulator.report.wording import significant

WIDTH, HEIGHT = 12.6, 7.4
MOST_CELLS = 22  # a side
MOST_JUMPS = 2  # of which both sides are shown
COLOURS = "cividis"


def draw_attention(table: CostTable, subtitle: str) -> Figure:
    """Two maps, colour and numbers for microseconds a layer, of equal contexts; empty where nothing was measured."""
    rows = table.frame()
    rows = rows[(rows["operator"] == "attention") & (rows["decode_longest"] == 0)]  # contexts that differ have no place
    title = "Attention: time of one call in one layer (µs)"
    figure = new_figure(WIDTH, HEIGHT, title, subtitle)
    left, right = figure.subplots(1, 2)
    alone = rows[(rows["prefills"] == 1) & (rows["decodes"] == 0)]
    decoding = rows[(rows["prefills"] == 0) & (rows["decodes"] > 0)]
    bounds = pd.concat([alone, decoding])["time_us"]
    norm = LogNorm(bounds.min(), bounds.max()) if len(bounds) else LogNorm(1, 10)
    jumps = chunk_jumps(rows)[:MOST_JUMPS]
    _map(
        left,
        alone,
        "prefill_context",
        "prefill_tokens",
        norm,
        {t for jump in jumps for t in (jump.tokens, jump.tokens + 1)},
    )
    left.set(xlabel="KV entries before the chunk", ylabel="Tokens of the chunk")
    left.set_title("One prompt chunk", weight="bold")
    _map(right, decoding, "decode_context", "decodes", norm)
    right.set(xlabel="KV entries of each decode", ylabel="Decodes")
    right.set_title("Decodes, one token each", weight="bold")
    return figure


def _map(axes: Axes, rows: pd.DataFrame, across: str, up: str, norm: LogNorm, telling: Collection[int] = ()) -> None:
    """`telling`: sizes upward that are shown whatever is left out."""
    axes.grid(visible=False)
    if rows.empty:
        no_data(axes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    times = rows.groupby([up, across])["time_us"].mean()
    tall, wide = (
        _shown(sorted(rows[name].unique().tolist()), telling) for name, telling in ((up, telling), (across, ()))
    )
    values = np.array([[times.get((row, column), np.nan) for column in wide] for row in tall])
    mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap=COLOURS, norm=norm, edgecolors="white", linewidth=0.4)
    axes.set_xticks(np.arange(len(wide)) + 0.5, [f"{size:,}" for size in wide], rotation=45)
    axes.set_yticks(np.arange(len(tall)) + 0.5, [f"{size:,}" for size in tall])
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = mesh.cmap(float(norm(value)))
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            colour = "white" if dark else INK
            axes.text(column + 0.5, row + 0.5, significant(value), ha="center", va="center", fontsize=6.8, color=colour)


def _shown(sizes: list[int], telling: Collection[int]) -> list[int]:
    """At most MOST_CELLS of the sizes: the ends, the `telling`, and those of fewest odd factors, as these are set."""
    ends = (sizes[0], sizes[-1])
    plain = sorted(sizes, key=lambda size: (size not in ends, size not in telling, size // max(size & -size, 1), size))
    return sorted(plain[:MOST_CELLS])
