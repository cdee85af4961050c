"""Plots of the pipeline experiment. Importing this module imports matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.pipeline.bubbles import CAUSES
from simulator.report.style import COLOURS, DASHES, HATCHES, INK, Look, looks, new_figure, save_png, styled
from simulator.reproduce.figures import Outcome
from simulator.reproduce.published import DURATION_S, MEDIAN_BUBBLE_S, RATIOS, SARATHI, TITLES, TP_ONLY, TP_PP

BUSY = "#d9d9d9"
SHOWN_CAUSES = 0.005
"""The least share of the time, of any run, that gives a cause a colour of its own."""


def write_plots(outcomes: Sequence[Outcome], folder: Path) -> list[str]:
    """Draws all plots into `folder`; their stems. The same runs give the same bytes."""
    with styled():
        drawings = {
            "completions": draw_completions(outcomes[0]),
            "request-bubbles": draw_request_bubbles(outcomes[0]),
            "stage-time": draw_stage_time(outcomes),
            "ratios": draw_ratios(outcomes),
        }
        for stem, drawing in drawings.items():
            save_png(drawing, folder, stem)
    return list(drawings)


def _look(label: str) -> Look:
    return dict(zip((TP_PP, SARATHI, TP_ONLY), looks(3), strict=True))[label]


def draw_completions(outcome: Outcome) -> Figure:
    """Requests finished over time, and where the published curves end."""
    drawing = new_figure(7.4, 3.9, "Requests finished", f"{outcome.variation.name}; open markers: end of the paper's")
    axes = drawing.subplots()
    for label, run in outcome.runs.items():
        look, done = _look(label), np.arange(1, len(run.finish_s) + 1)
        axes.plot(run.finish_s, done, color=look.colour, linestyle=look.dash, label=TITLES[label])
        if label in DURATION_S:
            _published(axes, DURATION_S[label], run.requests, look)
    axes.set(xlabel="time (s)", ylabel="requests", xlim=(0, None), ylim=(0, None))
    axes.legend(loc="lower right")
    return drawing


def draw_request_bubbles(outcome: Outcome) -> Figure:
    """Distribution of the bubbles that requests met, of systems with a pipeline, and the published medians."""
    drawing = new_figure(
        7.4, 3.9, "Bubbles of a request", f"{outcome.variation.name}; open markers: the paper's medians"
    )
    axes = drawing.subplots()
    for label in (TP_PP, SARATHI):
        bubbles, look = outcome.runs[label].request_bubbles_s, _look(label)
        shares = 100 * np.arange(1, len(bubbles) + 1) / len(bubbles)
        axes.plot(bubbles, shares, color=look.colour, linestyle=look.dash, label=TITLES[label])
        _published(axes, MEDIAN_BUBBLE_S[label], 50, look)
    axes.set(xlabel="sum over stages and iterations (s)", ylabel="requests with at most as much (%)")
    axes.set(xlim=(0, None), ylim=(0, 100))
    axes.legend(loc="lower right")
    return drawing


def _published(axes: Axes, x: float, y: float, look: Look) -> None:
    axes.plot(x, y, look.marker, color=look.colour, markerfacecolor="white", markersize=7, clip_on=False, zorder=4)


def draw_stage_time(outcomes: Sequence[Outcome]) -> Figure:
    """Shares of the stages' time by cause, a bar a pipeline and variation."""
    bars = [(outcome, label) for outcome in outcomes for label in (TP_PP, SARATHI)]
    shares = {cause: [_share(outcome, label, cause) for outcome, label in bars] for cause in CAUSES}
    shown = [cause for cause in CAUSES if max(shares[cause]) >= SHOWN_CAUSES]
    drawing = new_figure(
        9.4,
        0.9 + 0.27 * len(bars),
        "Where the stages' time goes",
        "mean over stages; busy in grey, what is below 0.5 % everywhere left out",
    )
    axes = drawing.subplots()
    places = -np.arange(len(bars), dtype=float)
    left = np.array([outcome.runs[label].busy_share for outcome, label in bars])
    axes.barh(places, 100 * left, color=BUSY, height=0.7, label="busy")
    for index, cause in enumerate(shown):
        width = np.array(shares[cause])
        axes.barh(places, 100 * width, left=100 * left, height=0.7, color=COLOURS[index % 8], hatch=HATCHES[index % 8],
                  label=cause.replace("_", " "))  # fmt: skip
        left = left + width
    axes.set_yticks(places, [f"{outcome.variation.name}: {TITLES[label].split()[-1]}" for outcome, label in bars])
    axes.set(xlim=(0, 100), xlabel="share of the duration (%)")
    axes.grid(visible=False, axis="y")
    drawing.legend(loc="outside lower left", ncols=4)
    return drawing


def _share(outcome: Outcome, label: str, cause: str) -> float:
    run = outcome.runs[label]
    return run.bubbles_s[cause] / run.duration_s


def draw_ratios(outcomes: Sequence[Outcome]) -> Figure:
    """A panel a ratio, a marker a variation, a line where the paper is."""
    drawing = new_figure(10.4, 1.3 + 0.27 * len(outcomes), "Ratios by variation", "dashed: as published")
    panels = drawing.subplots(1, len(RATIOS), sharey=True)
    places = -np.arange(len(outcomes), dtype=float)
    for axes, ratio in zip(panels, RATIOS, strict=True):
        found = [outcome.ratio(ratio) for outcome in outcomes]
        axes.plot(found, places, "o", color=COLOURS[0], markeredgecolor=INK, markeredgewidth=0.5, linestyle="none")
        axes.axvline(ratio.published, color=COLOURS[1], linestyle=DASHES[1])
        axes.set_title(ratio.title.replace(", TP", ",\nTP").replace(" than", "\nthan"))
        axes.set_xlim(0, 1.15 * max(*found, ratio.published))
    panels[0].set_yticks(places, [outcome.variation.name for outcome in outcomes])
    return drawing
