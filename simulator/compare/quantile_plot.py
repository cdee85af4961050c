"""Quantile-quantile plots of TTFT, ITL and E2E: each point is one percentile of both runs."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from simulator.compare.comparison import Comparison
from simulator.compare.plot_parts import diagonal, subtitle
from simulator.compare.run import Run
from simulator.compare.wording import percent
from simulator.report.style import COLOURS, INK, new_figure, no_data
from simulator.trace import Floats

PANELS = (("ttft", "Time to first token"), ("itl", "Inter-token latency"), ("e2e", "End-to-end latency"))
SHARES = np.array([*np.arange(1, 100) / 100, 0.995, 0.998, 0.999])
MARKED = ((0.5, "p50", "o"), (0.9, "p90", "s"), (0.99, "p99", "D"))
WIDTH, HEIGHT = 10.4, 3.5


def draw_quantiles(comparison: Comparison) -> Drawing:
    """A panel a latency: percentiles 1 to 99.9 of the other run over those of the reference, three of them named."""
    figure = new_figure(WIDTH, HEIGHT, "Percentiles of one run over those of the other", subtitle(comparison))
    for axes, (latency, title) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        axes.set_title(title)
        _panel(axes, comparison, latency)
    return figure


def _panel(axes: Axes, comparison: Comparison, latency: str) -> None:
    x, y = (_quantiles(run, latency, SHARES) for run in (comparison.reference, comparison.other))
    marks = [(name, marker, *_marked(comparison, latency, name)) for _, name, marker in MARKED]
    known = [mark for mark in marks if np.isfinite(mark[2] + mark[3])]
    if not known:
        no_data(axes)
        axes.set(xticks=[], yticks=[])
        axes.set_box_aspect(1)
        return
    diagonal(axes, np.append(x, [mark[2] for mark in known]), np.append(y, [mark[3] for mark in known]))
    axes.plot(x, y, "-", color=COLOURS[0], linewidth=1.2)
    axes.plot(x, y, "o", color=COLOURS[0], markersize=2.4)
    for name, marker, ours, theirs in known:
        label = f"{name}  {percent(100 * (theirs - ours) / ours) if ours else '-'}"
        axes.plot(
            ours, theirs, marker, color=COLOURS[1], markersize=6.5, markeredgecolor=INK, markeredgewidth=0.6,
            linestyle="none", label=label, zorder=3,
        )  # fmt: skip
    axes.legend(loc="upper left", handletextpad=0.3, borderaxespad=0.3)
    axes.set(xlabel="reference", ylabel="other" if latency == PANELS[0][0] else "")


def _quantiles(run: Run, latency: str, shares: Floats) -> Floats:
    found = run.distribution(latency)
    return np.full(len(shares), np.nan) if found is None else found.at(shares)


def _marked(comparison: Comparison, latency: str, name: str) -> tuple[float, float]:
    ours, theirs = (run.figure(f"{latency}_{name}_s") for run in (comparison.reference, comparison.other))
    return ours, theirs
