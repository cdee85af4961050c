"""Prices of a model from aiconfigurator-core's measured tables, and how what they lack is filled in.

Matrix products are taken at the token counts that were measured. Where the features (n, k) were not, the time is
interpolated between the neighbours that were, a straight line in each. Attention is taken as it was measured for
prompts without context and for decodes. The rest of it (context before a chunk, chunks between the measured sizes,
decodes beside a chunk) is the roofline model's time, multiplied by the ratio of measured to modelled time nearby.
Elementwise work, embedding, activation and sampling are the model's.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import exp, log

from profiler.grid import LINEAR_OPERATORS, PREFILL_CONTEXTS, Point
from profiler.imports.roofline import Roofline, products
from profiler.imports.silicon import Shape, Silicon
from profiler.imports.table import LONG_CONTEXT, Price, attention_points, other_points
from simulator.cost_table import Attention, Source

MOST_TOKENS = 16384
MOST_DECODES = 1024
MOST_CONTEXT = 131072


@dataclass(frozen=True)
class SiliconSource:
    """`roofline` is the model of the same GPU and shard; `silicon` the measurements."""

    roofline: Roofline
    silicon: Silicon
    kind: Source = "imported"
    dtype: str = "bfloat16"
    remarks: dict[str, None] = field(default_factory=dict)

    @cached_property
    def _gemm(self) -> dict[Shape, dict[int, float]]:
        return self.silicon.gemm_us()

    @cached_property
    def _prefill(self) -> dict[tuple[int, int], float]:
        return self._of_heads(self.silicon.prefill_us(self.roofline.shape.head_dim), "prefills")

    @cached_property
    def _decode(self) -> dict[tuple[int, int], float]:
        return self._of_heads(self.silicon.decode_us(self.roofline.shape.head_dim), "decodes")

    @cached_property
    def attention(self) -> Attention:
        """The kernel of the engine, as the package names it."""
        return Attention(self.silicon.kernel(), self.silicon.version("generation_attention_perf"))

    def points(self) -> Iterator[Point]:
        """Matrix products at the measured tokens, attention at the measured places and on the profiler's grid."""
        tokens = sorted({m for times in self._gemm.values() for m in times if m <= MOST_TOKENS})
        yield from (Point(operator, tokens=count) for operator in LINEAR_OPERATORS for count in tokens)
        yield from other_points()
        for prompts, count in self._prefill:
            if prompts in (1, 2, 4) and count <= MOST_TOKENS:  # after context, too: its growth cannot be guessed
                for context in (*PREFILL_CONTEXTS, LONG_CONTEXT) if prompts == 1 else (0,):
                    yield Point("attention", prefills=prompts, prefill_tokens=count, prefill_context=context)
        for decodes, context in self._decode:
            if decodes <= MOST_DECODES and context <= MOST_CONTEXT:
                yield Point("attention", decodes=decodes, decode_context=context)
        measured = {decodes for decodes, _ in self._decode}
        for point in attention_points(self.roofline):
            if not self._decode or point.prefills or point.decodes not in measured:
                yield point

    def price(self, point: Point) -> Price:
        """As measured where it was, otherwise as the module's docstring says."""
        if point.operator == "attention":
            return self._attention(point)
        if point.operator in products(self.roofline.shape):
            rows = point.tokens or point.sequences
            product_us = self.product_us(point.operator, rows)
            if product_us is not None:
                time = product_us + self.roofline.rest_us(point.operator, rows)
                return Price(time, time, time, 1)
        return Price.modelled(self.roofline.time_us(point))

    def product_us(self, operator: str, rows: int) -> float | None:
        """The matrix products of an operator alone; None where they were not measured at that many rows."""
        parts = [self._product(rows, n, k) for n, k in products(self.roofline.shape)[operator]]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def notes(self) -> Iterable[str]:
        """What was taken from where."""
        yield (
            f"imported from the package aiconfigurator-core: matrix products of {self.silicon.version('gemm_perf')},"
            f" attention of {self.attention.version} ({self.attention.backend}) on {self.silicon.gpu}"
        )
        yield (
            "a roofline model gives elementwise work, embedding, activation and sampling; and, scaled to measurements"
            " nearby, attention of chunks after context or beside decodes"
        )
        yield from self.remarks

    def _product(self, m: int, n: int, k: int) -> float | None:
        """Microseconds at measured tokens `m`; a product wider than any measured is several narrower ones."""
        times = self._gemm.get((n, k))
        if times is not None and m in times:
            return times[m]
        widest = max(n for n, _ in self._gemm)
        if n > widest:
            pieces = -(-n // widest)
            part = self._product(m, -(-n // pieces), k)
            self._remark(f"the product with n {n} is taken as {pieces} products")
            return None if part is None else pieces * part
        return self._interpolated(m, n, k)

    def _interpolated(self, m: int, n: int, k: int) -> float | None:
        total = 0.0
        for (near_n, n_share), (near_k, k_share) in product(_around(n, self._sizes[0]), _around(k, self._sizes[1])):
            time = self._gemm.get((near_n, near_k), {}).get(m)
            if time is None:
                return None
            total += n_share * k_share * time
        self._remark(f"the product with n {n}, k {k} was not measured: interpolated between its neighbours")
        return total if total > 0 else None

    @cached_property
    def _sizes(self) -> tuple[list[int], list[int]]:
        return sorted({n for n, _ in self._gemm}), sorted({k for _, k in self._gemm})

    def _attention(self, point: Point) -> Price:
        measured = None
        if not point.decodes and not point.prefill_context:
            measured = self._prefill.get((point.prefills, point.prefill_tokens))
        elif not point.prefills:
            measured = self._decode.get((point.decodes, point.decode_context))
        if measured is not None:
            return Price(measured, measured, measured, 1)
        return Price.modelled(self._scaled_us(point))

    def _scaled_us(self, point: Point) -> float:
        """The model's time by measured over modelled time of the call's parts, near their places; 1 where nothing was
        measured. No less than either part alone."""
        parts = []
        if point.prefills:
            alone = replace(point, decodes=0, decode_context=0)
            parts.append((self.roofline.time_us(alone), _between(point.prefill_tokens, self._prefill_ratios)))
        if point.decodes:
            alone = Point("attention", decodes=point.decodes, decode_context=point.decode_context)
            parts.append((self.roofline.time_us(alone), self._decode_correction(point.decodes, point.decode_context)))
        scaled = [time * correction for time, correction in parts]
        return max(*scaled, self.roofline.time_us(point) * sum(scaled) / sum(time for time, _ in parts))

    @cached_property
    def _prefill_ratios(self) -> dict[int, float]:
        """Measured over modelled time of one prompt, by its tokens."""
        return {
            count: time / self.roofline.time_us(Point("attention", prefills=1, prefill_tokens=count))
            for (prompts, count), time in self._prefill.items()
            if prompts == 1
        }

    @cached_property
    def _decode_ratios(self) -> dict[int, dict[int, float]]:
        """Measured over modelled time of decodes, by their number and the entries each attends to."""
        ratios: dict[int, dict[int, float]] = {}
        for (count, entries), time in self._decode.items():
            model = self.roofline.time_us(Point("attention", decodes=count, decode_context=entries))
            ratios.setdefault(count, {})[entries] = time / model
        return ratios

    def _decode_correction(self, decodes: int, context: int) -> float:
        return _between(decodes, {count: _between(context, ratios) for count, ratios in self._decode_ratios.items()})

    def _of_heads(self, times: dict[Shape, dict[tuple[int, int], float]], what: str) -> dict[tuple[int, int], float]:
        """The times of the model's head layout; of the nearest KV heads, scaled by the model, where it is missing."""
        shape = self.roofline.shape
        wanted = (shape.num_attention_heads, shape.num_key_value_heads)
        if wanted in times:
            return times[wanted]
        alike = [heads for heads in times if heads[0] == wanted[0]]
        if not alike:
            self._remark(f"attention of {what} with {wanted[0]} heads was not measured: the model's")
            return {}
        nearest = min(alike, key=lambda heads: abs(log(heads[1] / wanted[1])))
        self._remark(
            f"attention of {what} with {wanted[1]} KV heads was not measured: {nearest[1]} KV heads',"
            " scaled as the model's"
        )
        other = replace(self.roofline, shape=replace(shape, num_key_value_heads=nearest[1]))
        return {place: time * self._ratio(place, what, other) for place, time in times[nearest].items()}

    def _ratio(self, place: tuple[int, int], what: str, other: Roofline) -> float:
        first, second = place
        if what == "decodes":
            point = Point("attention", decodes=first, decode_context=second)
        else:
            point = Point("attention", prefills=first, prefill_tokens=second)
        return self.roofline.time_us(point) / other.time_us(point)

    def _remark(self, text: str) -> None:
        self.remarks.setdefault(text)


def _around(size: int, sizes: list[int]) -> list[tuple[int, float]]:
    """The measured sizes around `size` with their shares; the outermost alone, in proportion, where it lies beyond."""
    place = bisect_left(sizes, size)
    if place < len(sizes) and sizes[place] == size:
        return [(size, 1.0)]
    if place in (0, len(sizes)):
        near = sizes[min(place, len(sizes) - 1)]
        return [(near, size / near)]
    low, high = sizes[place - 1], sizes[place]
    share = (size - low) / (high - low)
    return [(low, 1 - share), (high, share)]


def _between(at: int, values: dict[int, float]) -> float:
    """The value at `at`, a straight line between logarithms; the outermost value beyond, 1 without any."""
    if not values:
        return 1.0
    places = sorted(values)
    above = bisect_left(places, at)
    if above == 0 or above == len(places):
        return values[places[min(above, len(places) - 1)]]
    low, high = places[above - 1], places[above]
    share = (log(at) - log(low)) / (log(high) - log(low))
    return exp((1 - share) * log(values[low]) + share * log(values[high]))
