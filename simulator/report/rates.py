"""Throughput against tail latency, a small panel for each measure and a bar for each policy."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulator.report.axes import count_axis, latency_axis, two_lines
from simulator.report.comparable import keep_up
from simulator.report.measures import ITL_P99, OUTPUT_RATE, REQUEST_RATE, TTFT_P99, Measure, column
from simulator.report.style import MUTED, looks, new_figure, no_data
from simulator.report.wording import duration, significant
from simulator.results import PolicyResult

PANELS = (
    (OUTPUT_RATE, "Output tokens/s"),
    (REQUEST_RATE, "Requests/s"),
    (TTFT_P99, "p99 TTFT"),
    (ITL_P99, "p99 ITL"),
)
WIDTH, BAR_INCHES = 10.4, 0.46
LATE = "†"
FAR = 30.0  # latencies further apart than this factor have a logarithmic axis, else the short bars vanish


def draw_throughput(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Output tokens/s, requests/s, p99 TTFT and p99 ITL side by side; the best of each in bold, of who keeps up."""
    title = "Throughput and the tail latency it costs"
    late = [not kept for kept in keep_up(results)]
    subtitle += f"; {LATE} does not keep up with the arrivals" if any(late) else ""
    figure = new_figure(WIDTH, 0.95 + BAR_INCHES * max(1.4, len(results)), title, subtitle)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (measure, heading) in zip(panels, PANELS, strict=True):
        logarithmic = _bars(axes, measure, results)
        axes.set_title(heading, weight="bold", pad=19)
        better = f"{measure.better} is better" + (", log axis" if logarithmic else "")
        axes.annotate(better, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", color=MUTED)
    names = [two_lines(result.label) + f" {LATE}" * slow for result, slow in zip(results, late, strict=True)]
    panels[0].set_yticks(range(len(results)), names)
    panels[0].tick_params(axis="y", labelcolor="black", labelsize=9)
    panels[0].set_ylim(len(results) - 0.45, -0.55)
    return figure


def _bars(axes: Axes, measure: Measure, results: Sequence[PolicyResult]) -> bool:
    """Draws the bars of a panel; True where its axis is logarithmic."""
    values = [measure.of(result) for result in results]
    finite = [value for value in values if math.isfinite(value)]
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if not finite:
        no_data(axes)
        axes.set_xticks([])
        return False
    top = max(finite) or 1.0
    start = _axis_start(measure, finite)
    if measure.kind == "seconds":
        latency_axis(axes.xaxis, start, top, 1.5)
    else:
        count_axis(axes.xaxis)
    # room for the number behind the longest bar
    axes.set_xlim(start, top * (top / start) ** 0.42 if start else top * 1.42)
    best = column(measure, results)[2]
    for row, (value, look) in enumerate(zip(values, looks(len(values)), strict=True)):
        known = math.isfinite(value)
        end = max(value, start) if known else start
        axes.barh(row, end - start, 0.62, start, color=look.colour, hatch=look.hatch, edgecolor="white")
        number = duration(value) if measure.kind == "seconds" else significant(value)
        weight = "bold" if best[row] else "normal"
        text = number if known else "no data"
        axes.annotate(text, (end, row), (3, 0), textcoords="offset points", va="center", weight=weight)
    return start > 0


def _axis_start(measure: Measure, values: Sequence[float]) -> float:
    """Where the bars start: 0, or a power of ten below the least latency where the greatest is FAR from it."""
    positive = [value for value in values if value > 0]
    if measure.kind != "seconds" or not positive or max(positive) <= FAR * min(positive):
        return 0.0
    return float(10.0 ** math.floor(math.log10(min(positive) / 1.5)))
