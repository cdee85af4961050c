"""Plots of a sweep over loads. Importing this module imports matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from simulator.report.style import MUTED, looks, new_figure, save_png, styled
from simulator.reproduce.loads.sweep import Crossover, Sweep

Table = Sequence[Mapping[str, Any]]


def measures(sweep: Sweep) -> dict[str, tuple[str, bool]]:
    """Columns that are drawn: title, and whether more is better."""
    goodputs = {
        f"{slo.name}_goodput_per_s_per_gpu": (f"goodput ({slo.name}), requests/s and GPU", True) for slo in sweep.slos
    }
    return {**goodputs, "ttft_p99_s": ("TTFT p99 (s)", False), "itl_p99_s": ("ITL p99 (s)", False)}


def write_plot(table: Table, sweep: Sweep, found: Mapping[str, Sequence[Crossover]], folder: Path) -> Path:
    """`loads.png` in `folder`; the same table gives the same bytes."""
    with styled():
        return save_png(draw_loads(table, sweep, found), folder, "loads")


def draw_loads(table: Table, sweep: Sweep, found: Mapping[str, Sequence[Crossover]]) -> Figure:
    """A panel a measure, a line a system; where the better side changes there is an upright line."""
    labels = (*sweep.shared, *sweep.pools)
    drawn = measures(sweep)
    drawing = new_figure(9.6, 1.2 + 2.5 * -(-len(drawn) // 2), "Chunked prefill or disaggregation", _subtitle(table))
    panels = drawing.subplots(-(-len(drawn) // 2), 2, sharex=True, squeeze=False).ravel()
    for axes in panels[len(drawn) :]:
        axes.set_axis_off()
    for axes, (column, (title, higher)) in zip(panels, drawn.items(), strict=False):
        for label, look in zip(labels, looks(len(labels)), strict=True):
            rows = [row for row in table if row["label"] == label]
            loads = [row["offered_per_s_per_gpu"] for row in rows]
            axes.plot(loads, [row[column] for row in rows], color=look.colour, linestyle=look.dash,
                      marker=look.marker, markersize=4, label=label)  # fmt: skip
        for crossover in found.get(column, ()):
            axes.axvline(crossover.at, color=MUTED, linestyle=":", linewidth=1.2)
        axes.set_title(title)
        if higher:
            axes.set_ylim(0, None)
        else:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(labelbottom=True)
    for axes in panels[len(drawn) - 2 : len(drawn)]:
        axes.set_xlabel("requests offered a second and GPU")
    handles, names = panels[0].get_legend_handles_labels()
    if len(drawn) < len(panels):
        panels[-1].legend(handles, names, loc="center left", handlelength=4)
    else:
        drawing.legend(handles, names, loc="outside lower center", ncols=len(labels))
    return drawing


def _subtitle(table: Table) -> str:
    counts = sorted({int(row["gpus"]) for row in table})
    each = f"{counts[0]} GPUs each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} GPUs"
    return f"{each}; xP + yD: prefill and decode GPUs; dotted lines: shared GPUs and pools change places"
