"""The same request in both runs: end-to-end latencies over each other, and the distribution of the errors."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from simulator.compare.comparison import Comparison
from simulator.compare.plot_parts import BANDS, diagonal, subtitle
from simulator.compare.workload import Matched
from simulator.report.style import COLOURS, DASHES, INK, new_figure, no_data

WIDTH, HEIGHT = 9.6, 4.1
CURVES = ("e2e", "ttft", "tpot")
SHOWN = (0.5, 99.5)
"""Percentiles of the errors between which the axis reaches."""


def draw_requests(comparison: Comparison) -> Drawing:
    """A point a request on the left; on the right which share of the requests has at most which error."""
    assert comparison.matched is not None
    figure = new_figure(WIDTH, HEIGHT, "Each request in both runs", subtitle(comparison))
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    _scatter(left, comparison.matched)
    _errors(right, comparison.matched)
    return figure


def _scatter(axes: Axes, pairs: Matched) -> None:
    x, y = pairs.reference.e2e_s, pairs.other.e2e_s
    axes.set_title("End-to-end latency")
    diagonal(axes, x, y)
    axes.scatter(x, y, s=7, color=COLOURS[0], alpha=0.55, linewidths=0, rasterized=True)
    axes.set(xlabel="reference", ylabel="other")


def _errors(axes: Axes, pairs: Matched) -> None:
    axes.set_title("Requests with at most this error")
    shown = []
    for index, latency in enumerate(CURVES):
        errors = pairs.errors_percent(latency)
        errors = np.sort(errors[np.isfinite(errors)])
        if len(errors):
            shown.append(errors)
            label = f"{latency.upper()}, median {np.median(errors):+.1f} %"
            shares = 100 * np.arange(1, len(errors) + 1) / len(errors)
            axes.step(errors, shares, where="post", color=COLOURS[index], linestyle=DASHES[index], label=label)
    if not shown:
        no_data(axes)
        return
    for width, grey in BANDS:
        axes.axvspan(-width, width, color=grey, linewidth=0, zorder=0.3)
    axes.axvline(0, color=INK, linewidth=0.9, zorder=0.6)
    ends = np.percentile(np.concatenate(shown), SHOWN)
    axes.set(xlim=(min(ends[0], -12) - 2, max(ends[1], 12) + 2), ylim=(0, 101))
    axes.set(xlabel="(other - reference) / reference (%)", ylabel="Requests (%)")
    axes.legend(loc="best")
