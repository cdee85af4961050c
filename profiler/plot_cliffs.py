"""The size of each cliff with its interval, by tokens, a panel an operator."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.cliffs import LAYER, find_cliffs, is_clear
from profiler.plot_axes import LOOKS, NAMES, tokens_axis
from simulator.cost_table import Cliff, CostTable
from simulator.report.style import GRID, MUTED, new_figure, no_data

PANELS = (LAYER, "mlp", "qkv_proj", "o_proj", "lm_head")
WIDTH, PANEL_INCHES = 10.4, 1.55
LABELLED = 7
APART = 0.05


def draw_cliffs(table: CostTable, subtitle: str) -> Figure:
    """Per cent by which one token more changes the time; hollow where chance may explain it."""
    cliffs = find_cliffs(table.frame(), table.metadata.cliffs)
    how = "95 % intervals" if any(cliff.rounds for cliff in cliffs) else "bars are the spread of separate measurements"
    title = f"Cliffs: what one token more costs ({how})"
    figure = new_figure(WIDTH, PANEL_INCHES * len(PANELS) + 0.4, title, subtitle)
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    last = max((cliff.tokens for cliff in cliffs), default=1024)
    for axes, name in zip(panels, PANELS, strict=True):
        tokens_axis(axes.xaxis, min(32, last), last * 1.15)
        own = [cliff for cliff in cliffs if cliff.operator == name and cliff.tokens >= min(32, last)]
        axes.set_title(NAMES[name] + (", by sequences" if name == "lm_head" else ""), weight="bold")
        axes.axhline(0, color=MUTED, lw=0.8)
        if own:
            _draw(axes, name, own)
        else:
            no_data(axes)
    panels[len(PANELS) // 2].set_ylabel("Change of the time from t to t + 1 (%)")
    panels[-1].set_xlabel("t, tokens of the step (LM head: sequences)")
    return figure


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
    _label(axes, cliffs)


def _label(axes: Axes, cliffs: Sequence[Cliff]) -> None:
    """The positions of the largest clear ones."""
    placed: list[float] = []
    for cliff in sorted((cliff for cliff in cliffs if is_clear(cliff)), key=lambda cliff: -abs(cliff.growth)):
        place = axes.transAxes.inverted().transform(axes.transData.transform((cliff.tokens, 0)))[0]
        if len(placed) == LABELLED or any(abs(place - other) < APART for other in placed):
            continue
        placed.append(float(place))
        up = cliff.growth > 0
        end = (cliff.high if up else cliff.low) * 100
        axes.annotate(
            f"{cliff.tokens}",
            (cliff.tokens, end),
            (0, 3 if up else -3),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            fontsize=7.5,
        )
