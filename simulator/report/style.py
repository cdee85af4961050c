"""One look for every figure: a colour-blind-safe palette, and dashes, markers and hatches for greyscale.

Nothing here touches a user's matplotlib: figures are made without pyplot and settings live in a context.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from simulator.report.wording import shorten

INK, MUTED, GRID = "#1a1a1a", "#5f5f5f", "#e2e2e2"
PREFILL, DECODE = "#f0b64a", "#00558a"  # light and dark: told apart in greyscale too
# Okabe and Ito 2008, strongest first; grey stands in for their yellow, too faint for a line on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#808080")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (6, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1.2)),
    (0, (9, 2, 3, 2)),
    (0, (4, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (1.2, 2.4)),
)
SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9a9a9a",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "figure.dpi": 150,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same bytes on every machine
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "hatch.color": "#ffffff",
    "hatch.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "path.simplify": True,
    "svg.hashsalt": "chunkwise",  # ids in the file depend on its contents only
    "text.color": INK,
    "text.parse_math": False,  # a label with two dollar signs is a label
    "xtick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelsize": 8.5,
}
HEADER_INCHES = 0.62


@dataclass(frozen=True)
class Look:
    """How one policy is drawn in every figure."""

    colour: str
    dash: Any
    marker: str
    hatch: str


def looks(policies: int) -> list[Look]:
    """A look for each policy; beyond eight the dashes shift, so that no two of 64 are alike."""
    return [
        Look(COLOURS[i % 8], DASHES[(i + i // 8) % 8], MARKERS[(i + i // 8) % 8], HATCHES[(i + i // 8) % 8])
        for i in range(policies)
    ]


def styled() -> AbstractContextManager[None]:
    """The settings above over matplotlib's defaults, whatever the user's own; the backend is left alone."""
    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **SETTINGS}
    del settings["backend"]  # the one setting that a context does not restore
    return matplotlib.rc_context(settings)


def new_figure(width: float, height: float, title: str, subtitle: str) -> Figure:
    """A figure of `width` x `height` inches below a header: `title` in words, `subtitle` cut to fit."""
    total = height + HEADER_INCHES
    figure = Figure(figsize=(width, total), layout="constrained")
    FigureCanvasAgg(figure)
    figure.text(0.12 / width, 1 - 0.1 / total, title, size=12.5, weight="bold", va="top")
    note = shorten(subtitle, int(width * 13))
    figure.text(0.12 / width, 1 - 0.36 / total, note, size=9, color=MUTED, va="top")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0.0, 0.0, 1.0, 1 - HEADER_INCHES / total), w_pad=0.09, h_pad=0.06)  # type: ignore[call-arg]
    return figure


def no_data(axes: Axes) -> None:
    """Says that there is nothing to draw, in the middle of the panel."""
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=MUTED, style="italic")


def laid_out(figure: Figure) -> None:
    """Place the figure's axes as they will be saved, for who needs to know where something lies."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """`stem`.png and `stem`.svg in `folder`; the same figure gives the same bytes."""
    png, svg = save_png(figure, folder, stem), folder / f"{stem}.svg"
    vector: Any = FigureCanvasSVG(figure)
    vector.print_svg(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


def save_png(figure: Figure, folder: Path, stem: str) -> Path:
    """`stem`.png alone; the figure keeps its layout."""
    laid_out(figure)
    figure.set_layout_engine("none")  # placed once, alike in every file
    png = folder / f"{stem}.png"
    agg: Any = FigureCanvasAgg(figure)
    agg.print_png(png, metadata={"Software": None})  # savefig would draw twice
    return png
