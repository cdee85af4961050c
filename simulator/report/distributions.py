"""Distributions of TTFT, ITL and bubbles, one curve a policy; percentiles on the curves and in the key."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.metrics.quantiles import weighted_quantiles
from simulator.report.axes import key, key_inches, latency_axis
from simulator.report.style import GRID, MUTED, Look, looks, new_figure, no_data
from simulator.report.wording import duration
from simulator.results import PolicyResult, floats
from simulator.trace import Floats, Ints

MARKED = np.array([0.5, 0.9, 0.99])
NINES = (
    (0.0, "0"),
    (0.5, "50"),
    (0.9, "90"),
    (0.99, "99"),
    (0.999, "99.9"),
    (0.9999, "99.99"),
    (0.99999, "99.999"),
)
WIDTH, HEIGHT = 9.6, 3.9
Pool = tuple[Floats, Ints]  # ascending values in seconds and how often each was seen


def draw_ttft(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """The empirical distribution function of the time to first token of all requests that got one."""
    pools = [_ttfts(result) for result in results]
    title = "Time to first token: share of requests served within it"
    figure, axes = _figure(results, pools, "requests", title, subtitle)
    shares = np.linspace(0, 1, 401)
    _curves(axes, pools, shares, shares, MARKED)
    _share_axis(axes)
    axes.set_xlabel("Time to first token")
    return figure


def draw_itl(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """The percentiles of the pooled inter-token latency, as high for each further nine: the tail shows."""
    pools = [_itls(result) for result in results]
    title = "Inter-token latency: percentile of the gaps between a request's tokens"
    figure, axes = _figure(results, pools, "gaps", title, subtitle)
    most = max(int(counts.sum()) for _, counts in pools)
    top = float(_nines(min(max(0.99, 1 - 1 / max(most, 1)), 0.99999)))
    heights = np.linspace(0, top, 501)
    _curves(axes, pools, 1 - 10.0**-heights, heights, _nines(MARKED))
    shown = [(float(_nines(share)), name) for share, name in NINES if _nines(share) <= top + 1e-9]
    axes.set_ylim(0, top * 1.02)
    axes.set_yticks([height for height, _ in shown], [name for _, name in shown])
    axes.set(xlabel="Inter-token latency", ylabel="Percentile of gaps (tail magnified)")
    return figure


def draw_request_bubbles(results: Sequence[PolicyResult], subtitle: str) -> Figure:
    """The empirical distribution function of the bubbles that finished requests met (SARATHI, figure 12a)."""
    pools = [_request_bubbles(result) for result in results]
    title = "Bubbles that a request meets: share of requests that meet no more"
    figure, axes = _figure(results, pools, "requests", title, subtitle)
    shares = np.linspace(0, 1, 401)
    _curves(axes, pools, shares, shares, MARKED)
    _share_axis(axes)
    axes.set_xlabel("Bubbles of all stages before the micro-batches of a request, summed")
    return figure


def _share_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 0.99], ["0", "25", "50", "75", "90", "99"])
    axes.set_ylabel("Requests (%)")


def _nines(share: float | Floats) -> Floats:
    """How many nines a share has: 0.9 is 1, 0.99 is 2."""
    return np.asarray(-np.log10(1 - np.asarray(share)), dtype=np.float64)


def _ttfts(result: PolicyResult) -> Pool:
    values = floats(result.requests, "ttft_s")
    return _each_once(values[np.isfinite(values)])


def _request_bubbles(result: PolicyResult) -> Pool:
    return _each_once(floats(result.requests, "bubble_s")[result.requests["status"] == "finished"])


def _each_once(values: Floats) -> Pool:
    return np.sort(values), np.ones(len(values), dtype=np.int64)


def _itls(result: PolicyResult) -> Pool:
    order = np.argsort(result.gaps.gap_s)
    return result.gaps.gap_s[order], result.gaps.count[order]


def _figure(
    results: Sequence[PolicyResult], pools: Sequence[Pool], unit: str, title: str, subtitle: str
) -> tuple[Figure, Axes]:
    """A figure with the key filled in and the axes to draw on."""
    below = key_inches(len(results))
    figure = new_figure(WIDTH, HEIGHT + below, title, subtitle)
    grid = figure.add_gridspec(2, 1, height_ratios=[HEIGHT, below])
    axes = figure.add_subplot(grid[0])
    columns: dict[str, Sequence[str]] = {unit: [f"{int(counts.sum()):,}" for _, counts in pools]}
    points = [weighted_quantiles(*pool, np.array([*MARKED, 1.0])) for pool in pools]
    for index, name in enumerate(("p50", "p90", "p99", "max")):
        columns[name] = [duration(float(found[index])) for found in points]
    key(figure.add_subplot(grid[1]), [result.label for result in results], looks(len(results)), columns)
    return figure, axes


def _curves(axes: Axes, pools: Sequence[Pool], shares: Floats, heights: Floats, marks: Floats) -> None:
    """Draws each pool's quantiles at `shares` against `heights`, and its MARKED ones at `marks`."""
    for mark in marks:
        axes.axhline(float(mark), color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
    drawn = [(pool, look) for pool, look in zip(pools, looks(len(pools)), strict=True) if pool[1].sum()]
    if not drawn:
        no_data(axes)
        axes.set_xticks([])
        return
    for pool, look in drawn:
        _curve(axes, pool, look, (shares, heights), marks)
    everything = np.concatenate([values[counts > 0] for (values, counts), _ in drawn])
    if latency_axis(axes.xaxis, float(np.quantile(everything, 0.002)), float(everything.max())):
        axes.set_xlim(left=float(np.quantile(everything, 0.002)) * 0.9)
    else:
        axes.set_xlim(0, float(everything.max()) * 1.04 or 1.0)
    axes.grid(axis="x", color=GRID)


def _curve(axes: Axes, pool: Pool, look: Look, line: tuple[Floats, Floats], marks: Floats) -> None:
    shares, heights = line
    axes.plot(weighted_quantiles(*pool, shares), heights, color=look.colour, linestyle=look.dash)
    at = weighted_quantiles(*pool, MARKED)
    axes.plot(
        at,
        marks,
        look.marker,
        color=look.colour,
        markersize=6.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        zorder=3,
    )
