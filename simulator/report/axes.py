"""Parts that several figures share: latency axes, the time axis, and the key below a figure."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from simulator.report.comparable import SLACK, keep_up, needed_s
from simulator.report.style import INK, MUTED, Look
from simulator.report.wording import count, duration, shorten, tick
from simulator.results import PolicyResult
from simulator.trace import Floats

ROW_INCHES = 0.215
LABEL_LIMIT = 44
PANEL_INCHES = 1.15  # the height of one of many panels, its title included
MUCH_LONGER = 1.25  # a run this many times as long as those that keep up squeezes them
WIDE = 8.0  # a range of more than this factor is drawn on a logarithmic axis


@dataclass(frozen=True)
class Span:
    """A stretch of the run, in seconds since the trace's zero; `beyond` says what goes on after it."""

    start_s: float
    end_s: float
    beyond: str = ""

    def edges(self, bins: int) -> Floats:
        """`bins` equal bins, as their bins + 1 edges in trace seconds."""
        return np.linspace(self.start_s, self.end_s, bins + 1)


def span(results: Sequence[PolicyResult]) -> Span:
    """From the first arrival to the last step's end of any policy; one second where nothing happened.

    Where some keep up and others run much longer, it ends soon after those that do: the rest is a queue that drains.
    """
    starts = [result.requests["arrival_s"].min() for result in results if len(result.requests)]
    ends = [result.iterations["end_s"].max() for result in results if len(result.iterations)]
    start = float(np.nanmin(starts)) if starts and not np.isnan(starts).all() else 0.0
    end = float(np.nanmax(ends)) if ends and not np.isnan(ends).all() else start
    late = [not kept for kept in keep_up(results)]
    soon = start + SLACK * needed_s(results)
    if any(late) and end - start > MUCH_LONGER * (soon - start):
        return Span(
            start, soon, f"{sum(late)} {'runs' if sum(late) == 1 else 'run'} longer, up to {duration(end - start)}"
        )
    return Span(start, end if end > start else start + 1.0)


def time_axis(axes: Axes, shown: Span, origin_s: float) -> None:
    """x from the first to the last second `shown`; labels count from `origin_s` in ms, s, min or h."""
    length = shown.end_s - shown.start_s  # of a window far into the run, too
    units = ((1e-3, "ms", 1.0), (1.0, "s", 600.0), (60.0, "min", 4 * 3600.0), (3600.0, "h", np.inf))
    size, unit = next((size, unit) for size, unit, limit in units if length <= limit)
    axes.set_xlim(shown.start_s, shown.end_s)
    first, last = (shown.start_s - origin_s) / size, (shown.end_s - origin_s) / size
    ticks = [value for value in MaxNLocator(7 if last < 1e5 else 4).tick_values(first, last) if first <= value <= last]
    axes.xaxis.set_major_locator(FixedLocator([origin_s + size * value for value in ticks]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{round((x - origin_s) / size, 6):,.10g}"))
    axes.set_xlabel(f"Time since the first arrival ({unit})" + (f"; {shown.beyond}" if shown.beyond else ""))


def latency_axis(axis: Axis, smallest: float, largest: float, room: float = 5.0) -> bool:
    """Ticks with their unit; logarithmic, and True, where the positive range is wide.

    `room` is for how many decades three and one are labelled; for half as many, one, two and five are.
    """
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    if not (smallest > 0 and largest > WIDE * smallest):
        return False
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    set_scale("log")
    decades = np.log10(largest / smallest)
    steps = (1.0, 2.0, 5.0) if decades < room / 2 else (1.0, 3.0) if decades < room else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    return True


def count_axis(axis: Axis) -> None:
    """Whole counts as 500, 2k, 1.5M."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))


def two_lines(label: str) -> str:
    """A label of any length on at most two lines of half LABEL_LIMIT."""
    text = shorten(label, LABEL_LIMIT)
    half = LABEL_LIMIT // 2
    lines = textwrap.wrap(text, half + 1)
    return "\n".join(lines if len(lines) <= 2 else [text[:half], text[half:]])


def key(
    axes: Axes, labels: Sequence[str], drawn: Sequence[Look], columns: dict[str, Sequence[str]], over: str = ""
) -> None:
    """A legend that is a table: a line sample, the label and its numbers, a row a policy; `over` heads the columns.

    `axes` should be key_inches high, for a row more with `over`; it becomes blank paper.
    """
    names = [shorten(label, LABEL_LIMIT) for label in labels]
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(len(names) + 0.9, -1.6 if over else -0.6)
    first = 0.15 + 0.0092 * max(10, *map(len, names))
    axes.text(first + 0.108 * (len(columns) - 1), -1, over, ha="right", va="center", color=MUTED)
    for column, (heading, texts) in enumerate(columns.items()):
        x = first + 0.108 * column
        axes.text(x, 0, heading, ha="right", va="center", color=MUTED)
        for row, text in enumerate(texts, 1):
            axes.text(x, row, text, ha="right", va="center", color=INK)
    for row, (name, look) in enumerate(zip(names, drawn, strict=True), 1):
        sample = {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "markersize": 5}
        axes.plot([0.004, 0.026, 0.048], [row] * 3, markevery=[1], **sample)
        axes.text(0.062, row, name, va="center")


def key_inches(rows: int) -> float:
    """The height that `key` needs for `rows` policies."""
    return (rows + 1.5) * ROW_INCHES
