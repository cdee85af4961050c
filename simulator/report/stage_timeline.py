"""The stages of a pipeline at work in a short stretch of the run, and what they wait for between micro-batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from simulator.pipeline.bubbles import IDLE, causes_of_gaps
from simulator.pipeline.log import StageTimes
from simulator.report.axes import LABEL_LIMIT, Span, span, time_axis
from simulator.report.causes import CAUSES
from simulator.report.stage_window import busy_share, typical_stretch
from simulator.report.style import DECODE, GRID, MUTED, PREFILL, new_figure, no_data
from simulator.report.wording import duration, shorten
from simulator.results import PolicyResult, floats

BAR, GAP = 0.84, 0.42  # heights of what a stage works on and of what it waits for; its row is 1
PIXELS = 1500  # what is narrower than one is not in the legend
LEGEND_COLUMNS = 4
Ranges = list[tuple[float, float]]


def draw_stages(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """A row a stage, the first on top, in the same seconds of each policy.

    Bars are micro-batches, coloured by whether they prefill, decode or both; thin bars are bubbles, each in the colour
    of the cause that has most of it; where most of a gap is waiting for arrivals it stays white.
    """
    staged = [result for result in results if result.stages is not None]
    pipelines = [result.stages for result in staged if result.stages is not None]
    whole = span(results)
    shown = typical_stretch(pipelines) or whole
    title = (
        f"What the stages work on (thick) and wait for (thin), in {duration(shown.end_s - shown.start_s)} of the run"
    )
    rows = [0.32 + stages.stages * (0.2 if stages.stages <= 4 else 0.145) for stages in pipelines]
    figure = new_figure(10.4, 1.05 + sum(rows), title, subtitle)
    panels = figure.subplots(len(staged), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    seen: set[int] = set()
    for axes, result, times in zip(panels, staged, pipelines, strict=True):
        axes.set_title(shorten(result.label, LABEL_LIMIT))
        seen |= _panel(axes, result, times, shown)
    time_axis(panels[-1], shown, whole.start_s)
    _legend(figure, seen)
    return figure


def _panel(axes: Axes, result: PolicyResult, times: StageTimes, shown: Span) -> set[int]:
    """Draws the stages of one policy and returns the places of the causes that can be seen."""
    axes.set_ylim(times.stages - 0.5, -0.5)
    axes.set_yticks(range(times.stages), [f"stage {stage}" for stage in range(times.stages)])
    axes.tick_params(axis="y", length=0, labelsize=8.5 if times.stages <= 4 else 7)
    axes.grid(axis="y", visible=False)
    if not len(times.start_ns):
        no_data(axes)
        return set()
    here, run = busy_share(times, shown), busy_share(times, None)
    axes.set_title(f"busy {100 * here:.0f} % of this time, {100 * run:.0f} % of the run", loc="right", color=MUTED)
    first = int(np.searchsorted(times.end_ns[:, -1], _ns(shown.start_s), side="right"))  # the last stage is behind
    last = int(np.searchsorted(times.start_ns[:, 0], _ns(shown.end_s), side="left"))
    _work(axes, result, times, slice(first, last))
    return _waits(axes, result, times, range(max(first, 1), min(last + 1, len(times.start_ns))), shown)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _work(axes: Axes, result: PolicyResult, times: StageTimes, batches: slice) -> None:
    """The micro-batches as bars; those that prefill and decode are light above and dark below."""
    starts, ends = times.start_ns[batches] / 1e9, times.end_ns[batches] / 1e9
    prefills = floats(result.iterations, "prefill_tokens")[batches] > 0
    decodes = floats(result.iterations, "num_decodes")[batches] > 0
    for stage in range(times.stages):
        top, middle = stage - BAR / 2, float(stage)
        for which, colour, low, high in (
            (prefills & ~decodes, PREFILL, top, stage + BAR / 2),
            (decodes & ~prefills, DECODE, top, stage + BAR / 2),
            (prefills & decodes, PREFILL, top, middle),
            (prefills & decodes, DECODE, middle, stage + BAR / 2),
        ):
            ranges = _ranges(starts[which, stage], ends[which, stage])
            axes.broken_barh(ranges, (low, high - low), facecolor=colour, linewidth=0)
        axes.vlines(starts[:, stage], top, stage + BAR / 2, color="white", linewidth=0.6)  # where one follows another


def _waits(axes: Axes, result: PolicyResult, times: StageTimes, batches: range, shown: Span) -> set[int]:
    """The gaps before `batches`, and the causes drawn."""
    if not batches:
        return set()
    # Of several replicas the first is drawn, and its rows come first.
    count = len(times.start_ns)
    prefills, decodes = (np.asarray(result.iterations[name])[:count] for name in ("prefill_tokens", "num_decodes"))
    most = causes_of_gaps(times, prefills, decodes, batches).argmax(axis=1)
    begins = times.end_ns[batches.start - 1 : batches.stop - 1] / 1e9
    ends = times.start_ns[batches.start : batches.stop] / 1e9
    visible = (ends > begins) & (ends > shown.start_s) & (begins < shown.end_s)
    for stage in range(times.stages):
        for place, cause in enumerate(CAUSES):
            which = visible[:, stage] & (most[stage] == place)
            ranges = _ranges(begins[which, stage], ends[which, stage])
            axes.broken_barh(ranges, (stage - GAP / 2, GAP), facecolor=cause.colour, linewidth=0)
    wide = visible & (ends - begins > (shown.end_s - shown.start_s) / PIXELS)
    return {int(place) for place in np.unique(most[wide.T])}


def _ranges(starts: Iterable[float], ends: Iterable[float]) -> Ranges:
    return [(start, end - start) for start, end in zip(starts, ends, strict=True)]


def _legend(figure: Figure, seen: set[int]) -> None:
    light, dark = Patch(color=PREFILL), Patch(color=DECODE)
    handles: list[Any] = [light, (light, dark), dark]
    names = ["prefill", "prefill and decode (hybrid)", "decode"]
    causes = [CAUSES[place] for place in sorted(seen - {IDLE})]
    handles += [Patch(color=cause.colour) for cause in causes]
    names += [cause.name for cause in causes]
    if IDLE in seen:
        handles.append(Patch(facecolor="white", edgecolor=GRID))
        names.append("no request")
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=LEGEND_COLUMNS,
        handler_map={tuple: HandlerTuple(ndivide=None)},
    )
