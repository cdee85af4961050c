"""Tokens per step over time, split into prefill and decode."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from simulator.report.axes import LABEL_LIMIT, PANEL_INCHES, Span, count_axis, span, time_axis
from simulator.report.binning import busiest_window, step_means
from simulator.report.style import DECODE, MUTED, PREFILL, new_figure, no_data
from simulator.report.wording import duration, shorten
from simulator.results import PolicyResult, floats
from simulator.trace import Floats

BINS = 300
STEPS_SHOWN = 250  # aimed at; single steps up to twice as many, still wider than a pixel, bins beyond
LONGEST_S = 30.0


def draw_timeline(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """Tokens per step, decode below prefill: the busiest seconds on the left, the whole run on the right."""
    whole = span(results)
    busy = busy_span(results, whole)
    shown = [busy, whole] if whole.end_s - whole.start_s > 1.5 * (busy.end_s - busy.start_s) else [whole]
    title = "Tokens per step, split into prefill and decode"
    figure = new_figure(10.4, 0.75 + PANEL_INCHES * max(1.4, len(results)), title, subtitle)
    panels = figure.subplots(len(results), len(shown), sharex="col", sharey=True, squeeze=False)
    _headings(panels, results, shown)
    most = [
        _step_panel(axes, result, part)
        for row, result in zip(panels, results, strict=True)
        for axes, part in zip(row, shown, strict=True)
    ]
    _token_axis(panels[0][0], max(most))
    for axes, part in zip(panels[-1], shown, strict=True):
        time_axis(axes, part, whole.start_s)
    samples = [
        Patch(color=PREFILL, label="prefill tokens (on top)"),
        Patch(color=DECODE, label="decode tokens"),
    ]
    figure.legend(handles=samples, loc="outside lower center", ncols=2)
    return figure


def _headings(panels: NDArray[np.object_], results: Sequence[PolicyResult], shown: Sequence[Span]) -> None:
    """The label over each row, and over two columns what they show."""
    for row, result in zip(panels, results, strict=True):
        row[0].set_title(shorten(result.label, LABEL_LIMIT))
        row[0].set_ylabel("Tokens (log)")
    if len(shown) == 2:
        panels[0][0].set_title(f"busiest {duration(shown[0].end_s - shown[0].start_s)}", loc="right", color=MUTED)
        panels[0][1].set_title("whole run" if not shown[1].beyond else "the run", loc="right", color=MUTED)


def busy_span(results: Sequence[PolicyResult], whole: Span) -> Span:
    """The seconds in which most tokens arrive: about STEPS_SHOWN steps of the median policy, LONGEST_S at most."""
    steps = [_typical_step(result) for result in results]
    typical = float(np.median([step for step in steps if np.isfinite(step)] or [LONGEST_S]))
    length = min(STEPS_SHOWN * typical, LONGEST_S)
    requests = max((result.requests for result in results), key=len)
    tokens = floats(requests, "prompt_tokens") + floats(requests, "output_tokens")
    start = busiest_window(floats(requests, "arrival_s"), tokens, length)
    if not np.isfinite(start) or not 0 < length < whole.end_s - whole.start_s:
        return whole
    start = min(start, whole.end_s - length)
    return Span(start, start + length)


def _typical_step(result: PolicyResult) -> float:
    steps = result.iterations
    return float(np.median(steps["end_s"] - steps["start_s"])) if len(steps) else float("nan")


def _step_panel(axes: Axes, result: PolicyResult, shown: Span) -> float:
    """Draws the steps of `shown`, says so where they are averaged, and returns the most tokens drawn."""
    edges, decode, prefill, single = _steps(result, shown)
    total = np.nan_to_num(decode + prefill)
    if not total.any():
        no_data(axes)
        return 0.0
    axes.stairs(total, edges, fill=True, color=PREFILL, linewidth=0)
    axes.stairs(np.nan_to_num(decode), edges, fill=True, color=DECODE, linewidth=0)
    if not single:
        part = axes.get_title(loc="right")
        axes.set_title(f"{part}, averaged" if part else "averaged", loc="right", color=MUTED)
    return float(total.max())


def _steps(result: PolicyResult, shown: Span) -> tuple[Floats, Floats, Floats, bool]:
    """(edges, decode tokens, prefill tokens, True): single steps where few, one at a time; else bins and False."""
    names = ("start_s", "end_s", "decode_tokens", "prefill_tokens")
    start, end, decode, prefill = (floats(result.iterations, name) for name in names)
    seen = (end > shown.start_s) & (start < shown.end_s)
    if 0 < seen.sum() <= STEPS_SHOWN * 2 and bool(np.all(start[seen][1:] >= end[seen][:-1])):
        return *_single_steps(start[seen], end[seen], decode[seen], prefill[seen]), True
    edges = shown.edges(BINS)
    means = step_means(start, end, [decode, prefill], edges)
    return edges, means[0], means[1], False


def _single_steps(start: Floats, end: Floats, decode: Floats, prefill: Floats) -> tuple[Floats, Floats, Floats]:
    """Every step and every pause between two, as edges and the tokens between them."""
    edges = np.column_stack([start, end]).ravel()
    idle = np.zeros(len(start))
    tokens = [np.column_stack([values, idle]).ravel()[:-1] for values in (decode, prefill)]
    lasting = np.diff(edges) > 0  # most steps start as the one before ends
    return edges[np.append(lasting, True)], tokens[0][lasting], tokens[1][lasting]


def _token_axis(axes: Axes, top: float) -> None:
    """Logarithmic from ten on: 40 decodes show beside a prompt of 10,000 tokens."""
    axes.set_yscale("symlog", linthresh=10, linscale=0.5)
    axes.set_ylim(0, max(top, 10) * 1.3)
    steps = (1, 3) if top < 3000 else (1,)
    ticks = [step * 10.0**power for power in range(1, 9) for step in steps]
    axes.yaxis.set_major_locator(FixedLocator([0, *(tick for tick in ticks if tick <= top)]))
    axes.yaxis.set_minor_locator(NullLocator())
    count_axis(axes.yaxis)
