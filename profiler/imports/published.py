"""Published times, and the roofline model's time for each: what `calibrate` fits and `residuals` prints."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from profiler.grid import LINEAR_OPERATORS, Point
from profiler.imports.datasheet import Hardware
from profiler.imports.roofline import Roofline
from simulator.models import ModelShape
from simulator.named_tables import find_table
from simulator.validation import parse

PUBLISHED = Path(__file__).with_name("published.yaml")
UNUSED = {"name": "", "head_dim": 128, "vocab_size": 1, "max_position_embeddings": 1}


@dataclass(frozen=True)
class Series:
    """Times of one model on one GPU: `points` with microseconds, of which `role` says whether the fit saw them.

    A point of the operator `linear` stands for the matrix products of all layers at its tokens; with `activation`
    the MLP's activation is in the time.
    """

    name: str
    gpu: str
    role: Literal["fitted", "held out"]
    source: str
    shape: ModelShape
    points: tuple[tuple[Point, float], ...]
    activation: bool = False
    layers: int = 1

    def model_us(self, point: Point, hardware: Hardware) -> float:
        """The model's time of a point."""
        roofline = Roofline(self.shape, hardware)
        if point.operator != "linear":
            return roofline.time_us(point)
        price = roofline.time_us if self.activation else _products_alone(roofline)
        return self.layers * sum(price(Point(operator, tokens=point.tokens)) for operator in LINEAR_OPERATORS)

    def errors(self, hardware: Hardware) -> list[float]:
        """The model's time over the published one, less 1, by point."""
        return [self.model_us(point, hardware) / time - 1 for point, time in self.points]


def _products_alone(roofline: Roofline) -> Any:
    return lambda point: roofline.product_us(point.operator, point.tokens)


@dataclass(frozen=True)
class _Entry:
    """An entry of `published.yaml`."""

    name: str
    gpu: str
    role: Literal["fitted", "held out"]
    source: str
    model: dict[str, int | bool]
    tensor_parallel: int = 1
    linear_ms: dict[int, float] = field(default_factory=dict)
    decode_us: tuple[tuple[int, int, int], ...] = ()


@cache
def published() -> tuple[Series, ...]:
    """All series: those of `published.yaml`, then this project's own measured tables."""
    raw = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
    entries = [parse(_Entry, entry, path=PUBLISHED) for entry in raw]
    return (*map(_series, entries), *_own_tables())


def _series(entry: _Entry) -> Series:
    shape = parse(ModelShape, {**UNUSED, **entry.model}, path=PUBLISHED)
    points = [(Point("linear", tokens=tokens), 1000 * time) for tokens, time in entry.linear_ms.items()]
    points += [
        (Point("attention", decodes=decodes, decode_context=context), time)
        for decodes, context, time in entry.decode_us
    ]
    return Series(
        entry.name,
        entry.gpu,
        entry.role,
        entry.source,
        shape.shard(entry.tensor_parallel),
        tuple(points),
        layers=shape.num_hidden_layers,
    )


def _own_tables() -> Iterator[Series]:
    """The H200 tables that ship: the 8B model's were fitted, the 13B model's were not."""
    for model, role in (("llama-3.1-8b", "fitted"), ("llama-13b", "held out")):
        table = find_table(f"h200/{model}")
        frame, shape, source = table.frame(), table.metadata.model, f"this project's table h200/{model}"
        products = frame[frame["operator"].isin(LINEAR_OPERATORS)].groupby(["tokens", "operator"])["time_us"].median()
        linear = products.unstack().dropna().sum(axis=1)  # the search for cliffs measures each elsewhere
        sums = zip(linear.index.tolist(), linear.tolist(), strict=True)
        points = tuple((Point("linear", tokens=tokens), time) for tokens, time in sums)
        yield Series(f"H200, {model}, a layer", "h200", role, source, shape, points, activation=True)  # type: ignore[arg-type]
        for operator, what in (("attention", "attention"), ("elementwise", "elementwise work")):
            rows = frame[(frame["operator"] == operator) & (frame["decode_longest"] == 0)]  # the model knows no other
            places = rows[list(Point.__dataclass_fields__)].itertuples(index=False)
            timed = zip((Point(*place) for place in places), rows["time_us"].tolist(), strict=True)
            yield Series(f"H200, {what} of {model}", "h200", role, source, shape, tuple(timed))  # type: ignore[arg-type]
