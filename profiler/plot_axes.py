"""What the plots of a table share: the axis of tokens, and the looks of operators."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from simulator.report.style import Look, looks

_LOOKS = looks(8)
LOOKS: dict[str, Look] = {
    "layer": _LOOKS[6],
    "mlp": _LOOKS[0],
    "qkv_proj": _LOOKS[1],
    "o_proj": _LOOKS[2],
    "lm_head": _LOOKS[3],
    "elementwise": _LOOKS[4],
    "prefill": _LOOKS[5],
    "decode": _LOOKS[7],
    "hybrid": _LOOKS[6],
}
NAMES = {
    "layer": "all three together",
    "mlp": "MLP",
    "qkv_proj": "QKV projection",
    "o_proj": "output projection",
    "lm_head": "LM head",
    "elementwise": "elementwise",
    "prefill": "attention, prefill",
    "decode": "attention, decodes",
    "hybrid": "attention, both",
}


def tokens_axis(axis: Axis, low: float, high: float) -> None:
    """A logarithmic axis with whole powers of two as ticks, at most ten."""
    powers = [2**power for power in range(31) if low <= 2**power <= high]
    powers = powers[:: -(-len(powers) // 10) or 1]
    set_scale, set_limits = (
        (axis.axes.set_xscale, axis.axes.set_xlim)
        if axis is axis.axes.xaxis
        else (axis.axes.set_yscale, axis.axes.set_ylim)
    )
    set_scale("log", base=2)
    axis.set_major_locator(FixedLocator(powers))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    set_limits(low, high)


def plain_log_axis(axis: Axis, subs: Sequence[float] = (1, 2, 5)) -> None:
    """A logarithmic axis whose ticks are written as plain numbers."""
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=tuple(subs)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def legend_below(axes: Axes, columns: int) -> None:
    """The key in rows under the axes, so that it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, handlelength=2.6)
