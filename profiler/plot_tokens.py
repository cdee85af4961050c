"""Time and efficiency of a layer's matrix products against tokens, with the cliffs marked."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.cliffs import LAYER, find_cliffs, is_clear
from profiler.grid import LINEAR_OPERATORS
from profiler.plot_axes import LOOKS, NAMES, legend_below, plain_log_axis, tokens_axis
from profiler.plot_labels import label_above
from profiler.roofline import with_work
from simulator.cost_table import Cliff, CostTable
from simulator.report.style import MUTED, laid_out, new_figure, no_data

WIDTH, HEIGHT = 10.4, 7.2
LABELLED = 8  # cliffs whose size is written beside them


def draw_tokens(table: CostTable, subtitle: str) -> Figure:
    """Above microseconds a layer, below TFLOP/s, of each matrix product and of all together."""
    rows = table.frame()
    figure = new_figure(WIDTH, HEIGHT, "Matrix products of a layer: time and efficiency by tokens of a step", subtitle)
    upper, lower = figure.subplots(2, 1, sharex=True)
    worked = with_work(rows[rows["operator"].isin(LINEAR_OPERATORS)], table.metadata)
    if worked.empty:
        no_data(upper)
        no_data(lower)
        return figure
    times, rates = _by_tokens(worked, "time_us"), _by_tokens(worked, "tflops")
    flops = _by_tokens(worked, "flops")
    shared = sorted(set[int]().union(*(own.index for own in times.values())))
    if len(times) == len(LINEAR_OPERATORS):
        times[LAYER] = _sum(times, shared)
        rates[LAYER] = _sum(flops, shared) / times[LAYER] / 1e6
    for name in (LAYER, *LINEAR_OPERATORS):
        if name in times:
            for axes, values in ((upper, times), (lower, rates)):
                look = LOOKS[name]
                axes.plot(values[name], color=look.colour, linestyle=look.dash, label=NAMES[name], lw=1.5)
    low = 32 if shared[-1] > 256 else 1
    high = max(int(shared[-1]), 2 * low)
    tokens_axis(lower.xaxis, low, high)
    plain_log_axis(upper.yaxis)
    visible = np.concatenate([own[own.index >= low].to_numpy() for own in times.values()])
    upper.set_ylim(visible.min() / 1.2, visible.max() * 1.5)
    lower.set_ylim(0, max(float(own.max()) for own in rates.values()) * 1.12)
    upper.set_ylabel("Time of a layer (µs)")
    lower.set_ylabel("Efficiency (TFLOP/s)")
    lower.set_xlabel(
        "t, tokens of the step (vertical lines: cliffs from t to t + 1; dotted where one token more is cheaper)"
    )
    legend_below(lower, 4)
    laid_out(figure)
    _mark(upper, lower, [cliff for cliff in find_cliffs(rows, table.metadata.cliffs) if cliff.operator == LAYER])
    return figure


def _by_tokens(worked: pd.DataFrame, column: str) -> dict[str, "pd.Series[float]"]:
    present = [name for name in LINEAR_OPERATORS if (worked["operator"] == name).any()]
    return {name: worked[worked["operator"] == name].groupby("tokens")[column].mean() for name in present}


def _sum(parts: dict[str, "pd.Series[float]"], tokens: list[int]) -> "pd.Series[float]":
    """The sum at all `tokens`, straight lines between those that a part was measured at."""
    sums = sum(np.interp(tokens, part.index.to_numpy(), part.to_numpy()) for part in parts.values())
    return pd.Series(sums, index=tokens)


def _mark(upper: Axes, lower: Axes, cliffs: list[Cliff]) -> None:
    """A line at each clear cliff, solid upward, dotted downward; the largest with their sizes."""
    low, high = upper.get_xlim()
    clear = [cliff for cliff in cliffs if is_clear(cliff) and low < cliff.tokens < high]
    for cliff in clear:
        for axes in (upper, lower):
            style = "solid" if cliff.growth > 0 else "dotted"
            axes.axvline(cliff.tokens + 0.5, color=MUTED, linestyle=style, lw=0.7, zorder=0.5)
    label_above(upper, clear, LABELLED)
