"""How far the price of each logged step is off, over its tokens, by kind of batch."""

import numpy as np
from matplotlib.figure import Figure as Drawing

from simulator.compare.comparison import Comparison
from simulator.compare.plot_parts import level_bands
from simulator.compare.steps import KINDS, errors_by_kind
from simulator.report.axes import count_axis
from simulator.report.style import COLOURS, MARKERS, new_figure
from simulator.report.wording import shorten

WIDTH, HEIGHT = 9.6, 4.3
SHOWN = (0.3, 99.7)
"""Percentiles of the errors between which the axis reaches."""


def draw_steps(comparison: Comparison) -> Drawing:
    """A point a step; the few beyond the axis lie on its edge and are counted."""
    steps = comparison.steps
    assert steps is not None
    errors, tokens = steps.errors_percent, steps.log.tokens[steps.rows]
    low, high = (float(end) for end in np.percentile(errors, SHOWN))
    low, high = min(low, -12) - 2, max(high, 12) + 2
    beyond = int(((errors < low) | (errors > high)).sum())
    note = f"steps of {shorten(comparison.reference.name, 34)}; {comparison.price}"
    figure = new_figure(WIDTH, HEIGHT, "Price of a step over its measured time", note)
    axes = figure.subplots()
    level_bands(axes)
    medians = {row.kind: row for row in errors_by_kind(steps)}
    for index, kind in enumerate(KINDS):
        chosen = steps.kind == index
        if chosen.any():
            label = f"{kind}: {int(chosen.sum()):,}, median {medians[kind].median_percent:+.1f} %"
            axes.plot(
                tokens[chosen], np.clip(errors[chosen], low, high), MARKERS[index], color=COLOURS[index],
                markersize=3.2, alpha=0.5, markeredgewidth=0, linestyle="none", label=label, rasterized=True,
                clip_on=False,
            )  # fmt: skip
    axes.set_xscale("log")
    count_axis(axes.xaxis)
    axes.set(ylim=(low, high), ylabel="(priced - measured) / measured (%)")
    axes.set_xlabel("Tokens of the step" + (f"; points on the edge lie beyond it ({beyond})" if beyond else ""))
    axes.legend(loc="best", markerscale=1.8)
    return figure
