"""Inter-token latency, queues and KV use over the run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simulator.report.axes import PANEL_INCHES, count_axis, key, key_inches, latency_axis, span, time_axis
from simulator.report.binning import alone, gap_bands, step_means
from simulator.report.style import COLOURS, MUTED, Look, looks, new_figure, no_data
from simulator.report.wording import shorten
from simulator.results import PolicyResult, floats
from simulator.trace import Floats

BINS = 150
DOT = 3.5  # points; what has no neighbour to draw a line to


def draw_itl_over_time(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Median, p99 and maximum of the gaps that end in each bin of the run, a panel a policy."""
    whole = span(results)
    edges = whole.edges(BINS)
    bands = [gap_bands(result.gaps, edges, np.array([0.5, 0.99, 1.0])) for result in results]
    title = "Inter-token latency of the requests in flight, over the run"
    figure = new_figure(9.6, 0.75 + PANEL_INCHES * max(1.4, len(results)), title, subtitle)
    panels = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, result, band, look in zip(panels, results, bands, looks(len(results)), strict=True):
        axes.set_title(shorten(result.label, 80))
        axes.set_ylabel("ITL")
        _band(axes, edges, band, look.colour)
    time_axis(panels[-1], whole, whole.start_s)
    _itl_axis(panels[0], np.concatenate([band[np.isfinite(band)] for band in bands]))
    figure.legend(handles=_band_samples(), loc="outside lower center", ncols=3)
    return figure


def _itl_axis(axes: Axes, shown: Floats) -> None:
    if not len(shown):
        axes.set_yticks([])
    elif not latency_axis(axes.yaxis, float(shown.min()), float(shown.max()), 2.5):
        axes.set_ylim(0, float(shown.max()) * 1.05 or 1.0)


def _band(axes: Axes, edges: Floats, band: Floats, colour: str) -> None:
    if not np.isfinite(band).any():
        no_data(axes)
        return
    middle = (edges[:-1] + edges[1:]) / 2
    axes.fill_between(middle, band[:, 0], band[:, 1], color=colour, alpha=0.3, linewidth=0)
    axes.plot(middle, band[:, 2], color=MUTED, linewidth=0.8, linestyle=(0, (1.2, 1.2)))
    axes.plot(middle, band[:, 0], color=colour, linewidth=1.8)
    _lone_bins(axes, middle, band, colour)


def _lone_bins(axes: Axes, middle: Floats, band: Floats, colour: str) -> None:
    """Bins between empty ones: a dot at the median, a stroke up to p99, a small dot at the maximum."""
    lone = alone(band[:, 0])
    if not lone.any():
        return
    x, (median, p99, most) = middle[lone], band[lone].T
    axes.vlines(x, median, p99, color=colour, alpha=0.3, linewidth=DOT)
    axes.plot(x, most, color=MUTED, linestyle="none", marker="o", markersize=2, markeredgewidth=0)
    axes.plot(x, median, color=colour, linestyle="none", marker="o", markersize=DOT, markeredgewidth=0)


def _band_samples() -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=MUTED, linewidth=1.8, marker="o", markersize=DOT, label="median"),
        Patch(color=MUTED, alpha=0.3, linewidth=0, label="median to p99"),
        Line2D([], [], color=MUTED, linewidth=0.8, linestyle=(0, (1.2, 1.2)), label="maximum"),
    ]


def draw_queue(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Running and waiting requests and KV tokens over the run, policies overlaid."""
    whole, drawn = span(results), looks(len(results))
    replicas = any("replica" in result.iterations.columns for result in results)
    edges, below = whole.edges(BINS), key_inches(len(results) + replicas) - 0.1
    title = "Requests running and waiting, and tokens in the KV cache, over the run"
    figure = new_figure(9.6, 5.2 + below, title, subtitle)
    grid = figure.add_gridspec(4, 1, height_ratios=[1.6, 1.6, 1.6, below])
    panels = [figure.add_subplot(grid[0])]
    panels += [figure.add_subplot(grid[row], sharex=panels[0]) for row in (1, 2)]
    for place, (result, look) in enumerate(zip(results, drawn, strict=True)):
        marks = _marks(look, place, len(results))
        for axes, values in zip(panels, _queues(result, edges), strict=True):
            middle, line = (edges[:-1] + edges[1:]) / 2, {"color": look.colour, "linestyle": look.dash, **marks}
            axes.plot(middle, values, linewidth=1.5, **line)
            lone = alone(values)
            if lone.any():
                axes.plot(middle[lone], values[lone], color=look.colour, linestyle="none", marker="o", markersize=DOT)
    for axes, name in zip(panels, ("Running", "Waiting", "KV tokens"), strict=True):
        _queue_axis(axes, name, any(len(result.iterations) for result in results))
        axes.tick_params(labelbottom=axes is panels[-1])
    time_axis(panels[-1], whole, whole.start_s)
    labels, peaks = [result.label for result in results], _peaks(results, "" if replicas else "most ")
    key(figure.add_subplot(grid[3]), labels, drawn, peaks, "most, of a replica" if replicas else "")
    return figure


def _marks(look: Look, place: int, policies: int) -> dict[str, Any]:
    """Markers where colours come twice, of each policy at bins of its own."""
    if policies <= len(COLOURS):
        return {}
    every = BINS // 8
    return {"marker": look.marker, "markersize": 4, "markevery": (place * every // policies, every)}


def _queue_axis(axes: Axes, name: str, drawn: bool) -> None:
    axes.set_ylabel(name)
    top = max(1.05, axes.get_ylim()[1])
    axes.set_ylim(-0.04 * top, top)  # a line at zero shows above the frame
    axes.yaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    count_axis(axes.yaxis)
    if not drawn:
        no_data(axes)


def _queues(result: PolicyResult, edges: Floats) -> list[Floats]:
    """The queues of a bin, of all replicas together."""
    names = ("start_s", "end_s", "running", "waiting", "kv_tokens")
    start, end, *columns = (floats(result.iterations, name) for name in names)
    if "replica" not in result.iterations.columns or not len(start):
        return step_means(start, end, columns, edges)
    replica = result.iterations["replica"]
    of_each = [
        step_means(start[own], end[own], [column[own] for column in columns], edges)
        for own in (replica == place for place in np.unique(replica))
    ]
    return [
        np.where(np.isnan(each).all(axis=0), np.nan, np.nansum(each, axis=0)) for each in zip(*of_each, strict=True)
    ]


def _peaks(results: Sequence[PolicyResult], most: str) -> dict[str, Sequence[str]]:
    names = {"running": "running", "waiting": "waiting", "KV": "kv_tokens"}
    return {
        most + heading: [
            f"{result.iterations[name].max():,.0f}" if len(result.iterations) else "-" for result in results
        ]
        for heading, name in names.items()
    }
