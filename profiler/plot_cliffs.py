"""The size of each cliff with its interval, by tokens, a panel an operator."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from profiler.cliffs import LAYER, find_cliffs, interval_of, is_clear
from profiler.plot_axes import LOOKS, NAMES, tokens_axis
from profiler.plot_labels import label_points, largest
from simulator.cost_table import Cliff, CostTable
from simulator.report.style import GRID, INK, MUTED, laid_out, new_figure, no_data

PANELS = (LAYER, "mlp", "qkv_proj", "o_proj", "lm_head")
WIDTH, PANEL_INCHES = 10.4, 1.65
LABELLED = 7
SMALLEST_TOKENS = 32  # below, steps of few decodes; what is among the largest is shown all the same
EDGE = 1.15  # of the axis beyond the first and the last point


def draw_cliffs(table: CostTable, subtitle: str) -> Figure:
    """Per cent by which one token more changes the time; hollow where chance may explain it."""
    metadata = table.metadata
    cliffs = find_cliffs(table.frame(), metadata.cliffs)
    title = f"Cliffs: what one token more costs ({interval_of(cliffs, metadata.source)})"
    figure = new_figure(WIDTH, PANEL_INCHES * len(PANELS) + 0.6, title, subtitle)
    panels = dict(zip(PANELS, figure.subplots(len(PANELS), 1), strict=True))
    of_tokens = _shown([cliff for cliff in cliffs if cliff.operator != "lm_head"])
    of_sequences = _shown([cliff for cliff in cliffs if cliff.operator == "lm_head"])
    for name, axes in panels.items():
        shown = of_sequences if name == "lm_head" else of_tokens
        tokens_axis(axes.xaxis, *_ends(shown))
        axes.set_title(NAMES[name], weight="bold")
        axes.axhline(0, color=MUTED, lw=0.8)
        if any(cliff.operator == name for cliff in shown):
            _draw(axes, name, [cliff for cliff in shown if cliff.operator == name])
        else:
            no_data(axes)
        if name in PANELS[:-2]:
            axes.tick_params(labelbottom=False)
    panels["qkv_proj"].set_ylabel("Change of the time from t to t + 1 (%)")
    panels["o_proj"].set_xlabel("t, tokens of the step")
    panels["lm_head"].set_xlabel("t, sequences of the step")
    _key(figure, modelled=metadata.source == "modelled")
    laid_out(figure)
    for name, axes in panels.items():
        label_points(axes, [cliff for cliff in (*of_tokens, *of_sequences) if cliff.operator == name], LABELLED)
    return figure


def _shown(cliffs: Sequence[Cliff]) -> list[Cliff]:
    """Those from SMALLEST_TOKENS on, and below what is among the largest of its operator."""
    labelled = [
        cliff for name in PANELS for cliff in largest([cliff for cliff in cliffs if cliff.operator == name], LABELLED)
    ]
    return [cliff for cliff in cliffs if cliff.tokens >= SMALLEST_TOKENS or cliff in labelled]


def _ends(cliffs: Sequence[Cliff]) -> tuple[float, float]:
    places = [cliff.tokens for cliff in cliffs] or [SMALLEST_TOKENS, 1024]
    return min(*places, SMALLEST_TOKENS) / EDGE, max(*places, 2 * SMALLEST_TOKENS) * EDGE


def _draw(axes: Axes, name: str, cliffs: Sequence[Cliff]) -> None:
    colour = LOOKS[name].colour
    for cliff in cliffs:
        axes.errorbar(
            cliff.tokens,
            cliff.growth * 100,
            cliff.error * 100,
            color=colour,
            marker="o",
            markersize=3.6,
            markerfacecolor=colour if is_clear(cliff) else "white",
            lw=1.2,
            capsize=2,
        )
        axes.vlines(cliff.tokens, 0, cliff.growth * 100, color=GRID, lw=1.0, zorder=0.5)
    ends = [(cliff.growth + side * cliff.error) * 100 for cliff in cliffs for side in (-1, 1)]
    room = 0.32 * (max(*ends, 2.0) - min(*ends, -2.0))
    axes.set_ylim(min(*ends, -2.0) - room, max(*ends, 2.0) + room)


def _key(figure: Figure, modelled: bool) -> None:
    """What filled and hollow points are."""
    meanings = ("2 % or more", "less") if modelled else ("a cliff", "less than 2 %, or chance may explain it")
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=3.6, color=INK, markerfacecolor=face, label=meaning)
        for face, meaning in zip((INK, "white"), meanings, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, handletextpad=0.3)
