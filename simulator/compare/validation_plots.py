"""The plots of a validation: all errors at a glance, and for each run quantiles, step times or overlap of stages and,
where a figure of ITL is off, its distribution. Importing this module imports matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from simulator.compare.limits import LIMITS, METRICS, NOISE, WIDER, within
from simulator.compare.overlap_plot import draw_overlap
from simulator.compare.quantile_plot import draw_quantiles
from simulator.compare.run import Distribution
from simulator.compare.step_plot import draw_steps
from simulator.compare.steps import SMALL_STEP
from simulator.compare.validated_run import ValidatedRun
from simulator.compare.validation_tables import figures
from simulator.report.axes import latency_axis
from simulator.report.style import COLOURS, DASHES, INK, MUTED, looks, new_figure, save_png, styled
from simulator.report.wording import duration, shorten
from simulator.trace import Floats

SHARES = np.array([*np.linspace(0.001, 0.999, 999), 0.9995, 0.9999])
TAIL = 0.8
"""The share of the gaps from which the right panel shows the distribution."""
BAND = "#d9d9d9"


def write_plots(runs: Sequence[ValidatedRun], folder: Path) -> list[str]:
    """Draws `overview` and each run's plots into `folder`; their stems. The same runs give the same bytes."""
    with styled():
        drawings = {"overview": draw_overview(runs)}
        for run in runs:
            drawings[f"quantiles-{run.name}"] = draw_quantiles(run.comparison)
            if run.comparison.steps is not None:
                drawings[f"steps-{run.name}"] = draw_steps(run.comparison)
            if run.overlap is not None:
                drawings[f"overlap-{run.name}"] = draw_overlap(run.name, run.overlap)
            if itl_is_off(run):
                drawings[f"itl-{run.name}"] = draw_gaps(run)
        for stem, drawing in drawings.items():
            save_png(drawing, folder, stem)
    return list(drawings)


def itl_is_off(run: ValidatedRun) -> bool:
    """Whether a figure of the time between tokens is over its limit, and both distributions are known."""
    known = run.measured.itl is not None and run.simulated.itl is not None
    return known and any(within(figure, run.gpus) is False for figure in figures(run) if figure.group == "itl")


def draw_overview(runs: Sequence[ValidatedRun]) -> Drawing:
    """Error over metric, a marker a run; grey is noise, dashes are limits."""
    note = "grey: two measurements of one run may differ by as much, where that is known; dotted: limits"
    if any(run.gpus > 1 for run in runs):
        note += f", {WIDER:g} times as wide on several GPUs"
    drawing = new_figure(10.4, 4.0 + 0.2 * len(runs), "Error of simulated figures", note)
    axes = drawing.subplots()
    for place, name in enumerate(METRICS):
        if name in NOISE:
            axes.fill_between([place - 0.42, place + 0.42], -NOISE[name], NOISE[name], color=BAND, linewidth=0)
        for limit in (-LIMITS[name], LIMITS[name]) if name in LIMITS else ():
            axes.plot([place - 0.42, place + 0.42], [limit, limit], color=MUTED, linestyle=DASHES[2], linewidth=1.2)
    titles = dict.fromkeys(METRICS, "")
    for index, (run, look) in enumerate(zip(runs, looks(len(runs)), strict=True)):
        shift = 0.6 * ((index + 0.5) / len(runs) - 0.5)
        rows = list(figures(run))
        titles |= {figure.name: figure.title for figure in rows}
        axes.plot(
            [METRICS.index(figure.name) + shift for figure in rows], [figure.error_percent for figure in rows],
            look.marker, color=look.colour, markersize=6, markeredgecolor=INK, markeredgewidth=0.5, linestyle="none",
            label=shorten(run.name, 60), zorder=3,
        )  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.set_xticks(range(len(METRICS)), [title.replace(" ", "\n", 1) for title in titles.values()])
    axes.grid(visible=False, axis="x")
    axes.set(xlim=(-0.6, len(METRICS) - 0.4), ylabel="(simulated - measured) / measured (%)")
    drawing.legend(loc="outside lower left", ncols=2)
    return drawing


def draw_gaps(run: ValidatedRun) -> Drawing:
    """Share of the gaps over their length, measured and simulated; on the right the longest of them."""
    note = f"{shorten(run.name, 60)}; green: shares of measured gaps by the step that ends them"
    drawing = new_figure(10.4, 3.9, "Distribution of the time between tokens", note)
    assert run.measured.itl is not None
    assert run.simulated.itl is not None
    pair = (run.measured.itl, run.simulated.itl)
    for axes, low in zip(drawing.subplots(1, 2), (0.0, TAIL), strict=True):
        _distribution(axes, pair, low)
        if run.gaps is not None:
            _kinds(axes, run.gaps.measured, named=low > 0)
    return drawing


def _kinds(axes: Axes, shares: Floats, named: bool) -> None:
    """Lines between the gaps that end with steps of decodes alone, with small mixed steps and with larger ones."""
    texts = ("decodes alone", f"mixed, up to {SMALL_STEP} tokens", "larger steps")
    ends = np.cumsum(shares)
    for place, (end, share, text) in enumerate(zip(ends, shares, texts, strict=True)):
        if place < 2:
            axes.axhline(end, color=COLOURS[2], linewidth=0.9)
        middle = {0: end - 0.6, 1: end - share / 2, 2: ends[1] + 0.6}[place]
        if named and middle > 100 * TAIL and (place != 1 or share > 1):
            axes.annotate(f"{text}: {share:.1f} %", (0.98, middle), xycoords=("axes fraction", "data"), ha="right",
                          va=("top", "center", "bottom")[place], color=COLOURS[2])  # fmt: skip


def _distribution(axes: Axes, pair: tuple[Distribution, Distribution], low: float) -> None:
    shares = SHARES[low <= SHARES]
    values = [side.at(shares) for side in pair]
    for index, (side, name, curve) in enumerate(zip(pair, ("measured", "simulated"), values, strict=True)):
        p90 = float(side.at(np.array([0.9]))[0])
        label = f"{name}, p90 {duration(p90)}" if low else name
        axes.plot(curve, 100 * shares, color=COLOURS[index], linestyle=DASHES[index], label=label)
        axes.plot(p90, 90, "s", color=COLOURS[index], markeredgecolor=INK, markeredgewidth=0.6, markersize=6)
    axes.set_title(f"From percentile {100 * low:g} on" if low else "All gaps; squares are p90")
    everything = np.concatenate(values)
    latency_axis(axes.xaxis, float(everything.min()), float(everything.max()), room=3.0)
    axes.set(ylim=(100 * low, 100), xlabel="time between two tokens", ylabel="gaps at most as long (%)")
    axes.legend(loc="lower right")
