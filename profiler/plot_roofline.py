"""The roofline of a table: FLOP/s of each row by arithmetic intensity, below the ceilings that the rows set."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.plot_axes import LOOKS, NAMES, plain_log_axis
from profiler.roofline import with_work
from simulator.cost_table import CostTable, Source
from simulator.report.style import INK, new_figure, no_data
from simulator.report.wording import significant

WIDTH, HEIGHT = 10.4, 5.6
KINDS = ("mlp", "qkv_proj", "o_proj", "lm_head", "prefill", "decode", "hybrid")
FAST = 0.98  # the quantile that is called a ceiling: the best rows, not one lucky one


def draw_roofline(table: CostTable, subtitle: str) -> Figure:
    """A point a row. Ceilings: the most TFLOP/s of a matrix product and the most TB/s of any operator."""
    rows = with_work(table.frame(), table.metadata)
    figure = new_figure(WIDTH, HEIGHT, "Roofline: work done per second by work per byte moved", subtitle)
    axes = figure.add_subplot()
    rows = rows.assign(kind=_kinds(rows))
    rows = rows[(rows["flops"] > 0) & rows["kind"].isin(KINDS)]
    if rows.empty:
        no_data(axes)
        return figure
    for kind in KINDS:
        own, look = rows[rows["kind"] == kind], LOOKS[kind]
        if len(own):
            axes.plot(
                own["intensity"],
                own["tflops"],
                linestyle="none",
                marker=look.marker,
                markersize=3.4,
                color=look.colour,
                alpha=0.7,
                markeredgewidth=0,
                label=NAMES[kind],
            )
    plain_log_axis(axes.xaxis, (1, 3))
    plain_log_axis(axes.yaxis, (1, 3))
    _ceilings(axes, rows, table.metadata.source)
    axes.set(xlabel="Arithmetic intensity (FLOP per byte)", ylabel="TFLOP/s")
    axes.legend(loc="lower right", markerscale=1.8, handlelength=1.2)
    return figure


def _kinds(rows: pd.DataFrame) -> "pd.Series[str]":
    """The operator; for attention what it runs."""
    kinds = rows["operator"].copy()
    attention = rows["operator"] == "attention"
    kinds[attention & (rows["decodes"] == 0)] = "prefill"
    kinds[attention & (rows["prefills"] == 0)] = "decode"
    kinds[attention & (rows["prefills"] > 0) & (rows["decodes"] > 0)] = "hybrid"
    return kinds


def ceilings(rows: pd.DataFrame) -> tuple[float, float]:
    """The most TFLOP/s and the most TB/s that rows reach, the latter of those that move more than 10 MB."""
    large = rows[rows["bytes"] > 1e7]
    moving = large if len(large) else rows
    return float(rows["tflops"].quantile(FAST)), float(moving["tbytes"].quantile(FAST))


def _ceilings(axes: Axes, rows: pd.DataFrame, source: Source) -> None:
    compute, bandwidth = ceilings(rows)
    low, high = float(rows["intensity"].min()) / 1.3, float(rows["intensity"].max()) * 1.3
    ridge = compute / bandwidth
    x = np.array(sorted({low, min(max(ridge, low), high), high}))
    axes.plot(x, np.minimum(bandwidth * x, compute), color=INK, lw=1.2, zorder=3)
    axes.set_xlim(low, high)
    axes.set_ylim(float(rows["tflops"].min()) / 1.5, compute * 2.2)
    text = (
        f"{source}: {significant(compute)} TFLOP/s, {significant(bandwidth)} TB/s,"
        f" which meet at {significant(ridge)} FLOP per byte"
    )
    axes.annotate(text, (0.01, 0.985), xycoords="axes fraction", va="top", color=INK)
