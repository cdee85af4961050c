"""What happened when: tokens per step, inter-token latency, queues and KV use over the run."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simulator.report.axes import Span, count_axis, key, key_inches, latency_axis, span, time_axis
from simulator.report.binning import busiest_window, gap_bands, step_means
from simulator.report.style import DECODE, MUTED, PREFILL, looks, new_figure, no_data
from simulator.report.wording import shorten
from simulator.results import PolicyResult
from simulator.trace import Floats

BINS = 150
STEPS_SHOWN = 400  # single steps up to here, bins beyond
WINDOW_S = (10.0, 30.0)
PANEL_INCHES = 1.15


def draw_timeline(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Tokens per step, decode below prefill: the busiest seconds on the left, the whole run on the right."""
    whole = span(results)
    busy = busy_span(results, whole)
    shown = [busy, whole] if whole.end_s - whole.start_s > 1.5 * (busy.end_s - busy.start_s) else [whole]
    title = "Tokens per step, split into prefill and decode"
    figure = new_figure(10.4, 0.75 + PANEL_INCHES * max(1.4, len(results)), title, subtitle)
    panels = figure.subplots(len(results), len(shown), sharex="col", sharey=True, squeeze=False)
    top = max(_step_panel(row[i], result, part) for row, result in zip(panels, results, strict=True)
              for i, part in enumerate(shown))
    for row, result in zip(panels, results, strict=True):
        row[0].set_title(shorten(result.label, 60))
        row[0].set_ylabel("Tokens")
    for axes, part in zip(panels[-1], shown, strict=True):
        time_axis(axes, part, whole.start_s)
    if len(shown) == 2:
        panels[0][1].set_title("whole run, averaged", loc="right", color=MUTED)
        panels[0][0].set_title("busiest window", loc="right", color=MUTED)
    _token_axis(panels[0][0], top)
    samples = [Patch(color=PREFILL, label="prefill tokens (on top)"), Patch(color=DECODE, label="decode tokens")]
    figure.legend(handles=samples, loc="outside lower center", ncols=2)
    return figure


def busy_span(results: Sequence[PolicyResult], whole: Span) -> Span:
    """The 10 to 30 s in which most tokens arrive, about STEPS_SHOWN steps of the median policy."""
    steps = [float((result.iterations["end_s"] - result.iterations["start_s"]).median()) for result in results]
    typical = float(np.median([step for step in steps if np.isfinite(step)] or [0.0]))
    length = float(np.clip(STEPS_SHOWN * typical, *WINDOW_S))
    requests = max((result.requests for result in results), key=len)
    tokens = (requests["prompt_tokens"] + requests["output_tokens"]).to_numpy(dtype=np.float64)
    start = busiest_window(requests["arrival_s"].to_numpy(dtype=np.float64), tokens, length)
    if not np.isfinite(start) or whole.end_s - whole.start_s <= length:
        return whole
    start = min(start, whole.end_s - length)
    return Span(start, start + length)


def _step_panel(axes: Axes, result: PolicyResult, shown: Span) -> float:
    """Draws the steps of `shown` and returns the most tokens drawn."""
    edges, decode, prefill = _steps(result, shown)
    total = np.nan_to_num(decode + prefill)
    if not total.any():
        no_data(axes)
        return 0.0
    axes.stairs(total, edges, fill=True, color=PREFILL, linewidth=0)
    axes.stairs(np.nan_to_num(decode), edges, fill=True, color=DECODE, linewidth=0)
    return float(total.max())


def _steps(result: PolicyResult, shown: Span) -> tuple[Floats, Floats, Floats]:
    """(edges, decode tokens, prefill tokens): single steps where few and one at a time, else time bins' means."""
    steps = result.iterations
    start, end, decode, prefill = (
        steps[name].to_numpy(dtype=np.float64) for name in ("start_s", "end_s", "decode_tokens", "prefill_tokens")
    )
    seen = (end > shown.start_s) & (start < shown.end_s)
    if seen.sum() <= STEPS_SHOWN * 2 and bool(np.all(start[seen][1:] >= end[seen][:-1])):
        return _single_steps(start[seen], end[seen], decode[seen], prefill[seen])
    edges = shown.edges(BINS * 2)
    return edges, *step_means(start, end, [decode, prefill], edges)


def _single_steps(
    start: Floats, end: Floats, decode: Floats, prefill: Floats
) -> tuple[Floats, Floats, Floats]:
    """Every step and every pause between two, as edges and the tokens between them."""
    edges = np.column_stack([start, end]).ravel()
    idle = np.zeros(len(start))
    tokens = [np.column_stack([values, idle]).ravel()[:-1] for values in (decode, prefill)]
    return edges, tokens[0], tokens[1]


def _token_axis(axes: Axes, top: float) -> None:
    axes.set_ylim(0, top * 1.05 or 1.0)
    count_axis(axes.yaxis)


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
    known = np.concatenate([band[np.isfinite(band)] for band in bands])
    if len(known) and not latency_axis(panels[0].yaxis, float(known.min()), float(known.max())):
        panels[0].set_ylim(0, float(known.max()) * 1.05 or 1.0)
    figure.legend(handles=_band_samples(), loc="outside lower center", ncols=3)
    return figure


def _band(axes: Axes, edges: Floats, band: Floats, colour: str) -> None:
    if not np.isfinite(band).any():
        no_data(axes)
        return
    middle = (edges[:-1] + edges[1:]) / 2
    axes.fill_between(middle, band[:, 0], band[:, 1], color=colour, alpha=0.3, linewidth=0)
    axes.plot(middle, band[:, 2], color=MUTED, linewidth=0.8, linestyle=(0, (1.2, 1.2)))
    axes.plot(middle, band[:, 0], color=colour, linewidth=1.8)


def _band_samples() -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=MUTED, linewidth=1.8, label="median"),
        Patch(color=MUTED, alpha=0.3, linewidth=0, label="median to p99"),
        Line2D([], [], color=MUTED, linewidth=0.8, linestyle=(0, (1.2, 1.2)), label="maximum"),
    ]


def draw_queue(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Running and waiting requests and KV tokens over the run, policies overlaid."""
    whole = span(results)
    edges, below = whole.edges(BINS), key_inches(len(results)) - 0.1
    title = "Requests running and waiting, and tokens in the KV cache, over the run"
    figure = new_figure(9.6, 5.2 + below, title, subtitle)
    grid = figure.add_gridspec(4, 1, height_ratios=[1.6, 1.6, 1.6, below])
    panels = [figure.add_subplot(grid[0])]
    panels += [figure.add_subplot(grid[row], sharex=panels[0]) for row in (1, 2)]
    drawn = looks(len(results))
    for result, look in zip(results, drawn, strict=True):
        for axes, values in zip(panels, _queues(result, edges), strict=True):
            axes.plot((edges[:-1] + edges[1:]) / 2, values, color=look.colour, linestyle=look.dash, linewidth=1.5)
    for axes, name in zip(panels, ("Running", "Waiting", "KV tokens"), strict=True):
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        count_axis(axes.yaxis)
        axes.tick_params(labelbottom=axes is panels[-1])
        if not any(len(result.iterations) for result in results):
            no_data(axes)
    time_axis(panels[-1], whole, whole.start_s)
    key(figure.add_subplot(grid[3]), [result.label for result in results], drawn, _peaks(results))
    return figure


def _queues(result: PolicyResult, edges: Floats) -> list[Floats]:
    names = ("start_s", "end_s", "running", "waiting", "kv_tokens")
    start, end, *columns = (result.iterations[name].to_numpy(dtype=np.float64) for name in names)
    return step_means(start, end, columns, edges)


def _peaks(results: Sequence[PolicyResult]) -> dict[str, Sequence[str]]:
    names = {"most running": "running", "most waiting": "waiting", "most KV": "kv_tokens"}
    return {
        heading: [f"{result.iterations[name].max():,.0f}" if len(result.iterations) else "–" for result in results]
        for heading, name in names.items()
    }
