"""How much of the stages' time is lost, by cause, a stacked bar a policy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.report.axes import two_lines
from simulator.report.causes import Cause, seen_causes, share_of_spans
from simulator.report.style import MUTED, new_figure
from simulator.results import PolicyResult

WIDTH, BAR_INCHES = 10.4, 0.46
LEGEND_COLUMNS = 4
VISIBLE = 5e-4


def draw_bubbles(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Bubbles as a share of the spans of all stages, split by cause; causes without any are left out."""
    causes = seen_causes(results)
    below = 0.25 * -(-len(causes) // LEGEND_COLUMNS)
    height = 0.75 + below + BAR_INCHES * max(1.4, len(results))
    figure = new_figure(
        WIDTH, height, "Pipeline bubbles: the share of the stages' time that is lost, by cause", subtitle
    )
    axes = figure.subplots()
    totals = [_bar(axes, row, result, causes) for row, result in enumerate(results)]
    axes.set_xlim(0, max(*totals, 0.01) * 1.45)  # room for what is written behind the longest bar
    axes.set_ylim(len(results) - 0.45, -0.55)
    axes.set_yticks(range(len(results)), [two_lines(result.label) for result in results])
    axes.tick_params(axis="y", labelcolor="black", labelsize=9, length=0)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, 6):g} %"))
    axes.set_xlabel("Share of the time between the first and the last work of a stage, mean of the stages")
    samples = [
        Patch(facecolor=cause.colour, hatch=cause.hatch, label=cause.name)
        for cause in causes
        if max(cause.share(result) for result in results) > VISIBLE
    ]
    if samples:
        figure.legend(handles=samples, loc="outside lower center", ncols=min(LEGEND_COLUMNS, len(samples)))
    return figure


def _bar(axes: Axes, row: int, result: PolicyResult, causes: Sequence[Cause]) -> float:
    """Draws the bar of one policy, its length written behind it, and returns that."""
    widths = np.array([cause.share(result) for cause in causes])
    ends = np.cumsum(widths)
    for cause, width, end in zip(causes, widths, ends, strict=True):
        look: dict[str, Any] = {"facecolor": cause.colour, "hatch": cause.hatch, "edgecolor": "white", "linewidth": 0.5}
        axes.barh(row, width, 0.62, end - width, **look)
    total = share_of_spans(result, "bubble_s")
    waiting = share_of_spans(result, "idle_s")
    rest = f"busy {_percent(share_of_spans(result, 'busy_s'))}"
    rest += f", no request {_percent(waiting)}" if waiting else ""
    place: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    shown = axes.annotate(_percent(total), (total, row), (4, 0), weight="bold", **place)
    axes.annotate(rest, (1, 0.5), (6, 0), xycoords=shown, color=MUTED, **place)
    return total


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
