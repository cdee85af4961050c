"""Labels of the largest cliffs, where they hide neither each other nor the points."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from profiler.cliffs import is_clear
from simulator.cost_table import Cliff
from simulator.report.style import INK, MUTED

FONT = 7.5
CHARACTER, LINE = 0.64 * FONT, 1.2 * FONT  # points that a digit and a line take
MARKER = 5.0
ROWS = 6

Place = tuple[float, float, str, str]
"""Points to the right and up from what is labelled; horizontal and vertical alignment."""


def largest(cliffs: Iterable[Cliff], most: int) -> list[Cliff]:
    """The largest clear ones, the largest first."""
    return sorted((cliff for cliff in cliffs if is_clear(cliff)), key=lambda cliff: -abs(cliff.growth))[:most]


def label_points(axes: Axes, cliffs: Sequence[Cliff], most: int) -> None:
    """Write t at the points of the `most` largest, above those upward, below those downward, else beside them.

    The figure has to be laid out. A label for which there is no room is left out.
    """
    points = axes.figure.dpi / 72
    markers = []
    for cliff in cliffs:
        x, y = axes.transData.transform((cliff.tokens, cliff.growth * 100))
        markers.append(_box(x, y, MARKER * points, MARKER * points, "center", "center"))
    placed: list[Bbox] = []
    for cliff in largest(cliffs, most):
        end = (cliff.high if cliff.growth > 0 else cliff.low) * 100
        x, y = axes.transData.transform((cliff.tokens, end))
        wide, tall = len(str(cliff.tokens)) * CHARACTER * points, LINE * points
        fitting = [
            (place, box)
            for place in _places(1 if cliff.growth > 0 else -1)
            for box in [_box(x + place[0] * points, y + place[1] * points, wide, tall, *place[2:])]
            if not box.count_overlaps(placed) and _within(box, axes.bbox)
        ]
        if fitting:
            (right, up, ha, va), box = min(fitting, key=lambda chosen: chosen[1].count_overlaps(markers))
            placed.append(box)
            axes.annotate(
                f"{cliff.tokens}", (cliff.tokens, end), (right, up), textcoords="offset points", ha=ha, va=va,
                fontsize=FONT, color=INK,
            )  # fmt: skip


def _places(side: int) -> list[Place]:
    beyond = "bottom" if side > 0 else "top"
    return [
        (0, 3 * side, "center", beyond),
        (5, 0, "left", "center"),
        (-5, 0, "right", "center"),
        (5, 3 * side, "left", beyond),
        (-5, 3 * side, "right", beyond),
        (0, 11 * side, "center", beyond),
    ]


def label_above(axes: Axes, cliffs: Sequence[Cliff], most: int) -> None:
    """Write t and the size of the `most` largest over the axes, in as many rows as it takes to keep them apart.

    The figure has to be laid out. A label for which there is no room in ROWS rows is left out.
    """
    points = axes.figure.dpi / 72
    rows: list[list[Bbox]] = [[] for _ in range(ROWS)]
    for cliff in largest(cliffs, most):
        text = f"{cliff.tokens}  {cliff.growth * 100:+.0f} %".replace("-", "\N{MINUS SIGN}")
        x = axes.transData.transform((cliff.tokens + 0.5, 1))[0]
        box = _box(x, 0, (len(text) + 1) * CHARACTER * points, LINE, "center", "bottom")
        row = next((row for row, placed in enumerate(rows) if not box.count_overlaps(placed)), None)
        if row is not None:
            rows[row].append(box)
            axes.annotate(
                text, (cliff.tokens + 0.5, 1.0), (0, 2 + row * 1.1 * LINE), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", va="bottom", fontsize=FONT, color=INK, zorder=4 - row / ROWS,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # hides the lines to labels above it
                arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip


def _box(x: float, y: float, wide: float, tall: float, ha: str, va: str) -> Bbox:
    left = x - wide * {"left": 0.0, "center": 0.5, "right": 1.0}[ha]
    bottom = y - tall * {"bottom": 0.0, "center": 0.5, "top": 1.0}[va]
    return Bbox.from_bounds(left, bottom, wide, tall)


def _within(box: Bbox, whole: Bbox) -> bool:
    return bool(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1)
