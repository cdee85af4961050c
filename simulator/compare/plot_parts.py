"""Parts that the plots of a comparison share: the diagonal with its bands of per cent, and their sentences."""

import numpy as np
from matplotlib.axes import Axes

from simulator.compare.comparison import Comparison
from simulator.report.axes import latency_axis
from simulator.report.style import INK, MUTED
from simulator.report.wording import shorten
from simulator.trace import Floats

BANDS = ((10, "#ececec"), (5, "#d9d9d9"))
"""Per cent on either side, and their grey, the wider first."""


def subtitle(comparison: Comparison) -> str:
    """Which runs are compared, and what the greys are."""
    names = [shorten(run.name, 40) for run in (comparison.other, comparison.reference)]
    return f"{names[0]} against {names[1]} (reference); grey: within 5 and 10 %"


def diagonal(axes: Axes, x: Floats, y: Floats) -> None:
    """Square limits around all positive `x` and `y`, ticks with units, the line of no error, and the bands."""
    everything = np.concatenate([x, y])
    everything = everything[np.isfinite(everything) & (everything > 0)]
    if not len(everything):
        return
    low, high = float(everything.min()), float(everything.max())
    logarithmic = latency_axis(axes.xaxis, low, high, room=3.0)
    latency_axis(axes.yaxis, low, high, room=3.0)
    low, high = (low / 1.15, high * 1.15) if logarithmic else (0.0, high * 1.06)
    line = np.array([low, high])
    for width, grey in BANDS:
        axes.fill_between(line, line * (1 - width / 100), line * (1 + width / 100), color=grey, linewidth=0, zorder=0.3)
    axes.plot(line, line, color=MUTED, linewidth=0.9, zorder=0.6)
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.set_box_aspect(1)


def level_bands(axes: Axes) -> None:
    """The bands about an error of 0 on the y axis."""
    for width, grey in BANDS:
        axes.axhspan(-width, width, color=grey, linewidth=0, zorder=0.3)
    axes.axhline(0, color=INK, linewidth=0.9, zorder=0.6)
