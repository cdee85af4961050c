"""Distributions of how long steps of a pipeline are under way and follow each other, measured beside simulated."""

import numpy as np
from matplotlib.figure import Figure as Drawing

from simulator.compare.overlap import KINDS, Overlap
from simulator.report.axes import latency_axis
from simulator.report.style import COLOURS, DASHES, new_figure
from simulator.report.wording import shorten

WIDTH, HEIGHT = 10.4, 3.9
SHARES = np.linspace(0.005, 0.995, 397)
PANELS = {
    "interval": "From the output before to a step's own",
    "latency": "From a step's scheduling to its output",
}


def draw_overlap(name: str, overlap: Overlap) -> Drawing:
    """Share of the steps over their intervals, and over their latencies: a colour a kind, dashed if simulated."""
    note = f"{shorten(name, 60)}; the middle 99 % of each kind of step"
    drawing = new_figure(WIDTH, HEIGHT, "How far the stages of a pipeline overlap", note)
    sides = {"measured": overlap.measured, "simulated": overlap.simulated}
    for axes, (times, title) in zip(drawing.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        shown = []
        for place, kind in enumerate(KINDS):
            for index, (side, spans) in enumerate(sides.items()):
                values = getattr(spans, f"{times}_s")[spans.kind == place]
                values = values[~np.isnan(values)]
                if len(values):
                    curve = np.quantile(values, SHARES)
                    shown.append(curve)
                    label = f"{kind}, {side}"
                    axes.plot(curve, 100 * SHARES, color=COLOURS[place], linestyle=DASHES[index], label=label)
        if shown:
            everything = np.concatenate(shown)
            latency_axis(axes.xaxis, float(everything.min()), float(everything.max()), room=3.0)
        axes.set_title(title)
        axes.set(ylim=(0, 100), xlabel=times)
    first = drawing.axes[0]
    first.set_ylabel("steps at most as long (%)")
    drawing.legend(*first.get_legend_handles_labels(), loc="outside lower left", ncols=3)
    return drawing
