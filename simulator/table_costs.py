"""Prices of steps from a measured table.

A step costs embedding + layers x (linear operators + elementwise + attention) + LM head. The linear part is looked up
by the step's tokens, piecewise linear between measured points: where both n and n + 1 were measured, a tile cliff
between them stays a cliff. Attention is interpolated on its measured surfaces: prefill chunk x context, decodes x mean
context, and for hybrid steps what the decodes add to a prefill in the same kernel call. A price needs O(chunks) work
and never looks at single decodes.

Outside the measured grid the nearest measured trend is continued; `GridRange` says where that begins,
and `steps_beyond_*` count the steps whose contexts were concerned.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost_table import TOKEN_OPERATORS, CostTable
from simulator.costs import DecodeLine
from simulator.errors import InputError
from simulator.trace import Floats

_NS_PER_US = 1000.0


@dataclass(frozen=True)
class GridRange:
    """Largest measured tokens of a step, sequences, prefill context, decodes and decode context."""

    tokens: int
    sequences: int
    prefill_context: int
    decodes: int
    decode_context: int


class TableCosts:
    """Step prices from `table` for the model it was measured with."""

    def __init__(self, table: CostTable) -> None:
        rows, layers = table.rows, table.metadata.model.num_hidden_layers
        self._token_ns = _token_prices(rows, layers, table.name)
        self._sequence_ns = _sequence_prices(rows, table.name)
        attention = _only(rows, rows["operator"] == "attention")
        with_prefill, with_decodes = attention["prefills"] > 0, attention["decodes"] > 0
        scale = layers * _NS_PER_US
        self._prefill = PrefillSurface(_only(attention, with_prefill & ~with_decodes), scale, table.name)
        self._decode = DecodeSurface(_only(attention, with_decodes & ~with_prefill), scale, table.name)
        hybrid = _only(attention, with_decodes & with_prefill)
        self._riding = _riding_surface(hybrid, self._prefill, scale, self._decode, table.name)
        self._decode_lines: dict[int, DecodeLine] = {}
        self.grid = GridRange(
            int(rows["tokens"].max()),
            int(rows["sequences"].max()),
            int(attention["prefill_context"].max()),
            int(attention["decodes"].max()),
            int(attention["decode_context"].max()),
        )
        self._longest_decode = self.grid.decode_context
        self.steps_beyond_prefill_context = 0
        self.steps_beyond_decode_context = 0

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[tuple[int, int]]) -> int:
        """See `StepCosts.step_ns`."""
        if not chunks:
            return self._decodes_alone_ns(decodes, decode_context) if decodes else 0
        if decode_context > decodes * self._longest_decode:
            self.steps_beyond_decode_context += 1
        tokens, before, attention_ns, prefill_ns = decodes, 0, 0.0, self._prefill.price
        for context, new in chunks:
            tokens += new
            if context > before:
                before = context
            attention_ns += prefill_ns(context, new)
        if before > self.grid.prefill_context:
            self.steps_beyond_prefill_context += 1
        sequences = decodes + len(chunks)
        if len(chunks) > 1:  # one kernel call, so its fixed cost is paid once
            attention_ns -= (len(chunks) - 1) * self._prefill.floor_ns
        if decodes:
            attention_ns += self._riding.price(decodes, decode_context)
        if tokens > self.grid.tokens or sequences > self.grid.sequences:
            return int(self._tokens_ns(tokens) + self._sequences_ns(sequences) + attention_ns)
        return int(self._token_ns[tokens] + self._sequence_ns[sequences] + attention_ns)

    def decode_line(self, decodes: int) -> DecodeLine:
        """See `StepCosts.decode_line`."""
        line = self._decode_lines.get(decodes)
        if line is None:
            fixed_ns = self._tokens_ns(decodes) + self._sequences_ns(decodes)
            starts, constants, slopes = self._decode.line(decodes)
            constants = [fixed_ns + constant for constant in constants]
            line = DecodeLine(starts, constants, slopes, decodes * self._longest_decode)
            self._decode_lines[decodes] = line
        return line

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """See `StepCosts.count_beyond`: contexts grew by `decodes` in each step."""
        excess = decode_context - decodes * self._longest_decode
        self.steps_beyond_decode_context += min(steps, -(-excess // decodes))

    def _decodes_alone_ns(self, decodes: int, decode_context: int) -> int:
        line = self.decode_line(decodes)
        if decode_context > line.measured_to:
            self.count_beyond(decodes, decode_context, 1)
        return line.price(decode_context)

    def _tokens_ns(self, tokens: int) -> float:
        prices = self._token_ns
        return prices[tokens] if tokens < len(prices) else _continued(prices, tokens)

    def _sequences_ns(self, sequences: int) -> float:
        prices = self._sequence_ns
        return prices[sequences] if sequences < len(prices) else _continued(prices, sequences)


Line = tuple[list[int], list[float], list[float]]
"""A piecewise linear function: where each piece but the first begins, and the constant and slope of each."""


def line_through(x: Sequence[int], y: Sequence[float]) -> Line:
    """The line through points of ascending `x` from 0 on and positive `y`.

    Outside them the nearest piece goes on, but it neither gets below 0 on the left nor falls on the right.
    """
    slopes = [(high - low) / (b - a) for (a, b), (low, high) in zip(pairwise(x), pairwise(y), strict=True)] or [0.0]
    left = max(0.0, y[0] - x[0] * slopes[0])
    slopes = [(y[0] - left) / x[0] if x[0] else slopes[0], *slopes, max(0.0, slopes[-1])]
    starts = [(0, left), *zip(x, y, strict=True)]
    if len(x) == 1:
        del slopes[1]
    return list(x), [value - at * slope for (at, value), slope in zip(starts, slopes, strict=True)], slopes


Rows = Mapping[str, NDArray[Any]]
"""Rows of a cost table: arrays of equal length by column."""


def _only(rows: Rows, wanted: NDArray[np.bool_]) -> Rows:
    return {name: column[wanted] for name, column in rows.items()}


def _medians(places: NDArray[Any], times: NDArray[Any]) -> tuple[list[int], list[float]]:
    """The places in ascending order, and the median time at each."""
    distinct = np.unique(places)
    return distinct.tolist(), [float(np.median(times[places == place])) for place in distinct]


def value_at(line: Line, at: int) -> float:
    """The value of a piecewise linear function."""
    starts, constants, slopes = line
    piece = bisect_right(starts, at)
    return constants[piece] + at * slopes[piece]


class PrefillSurface:
    """Attention of one prompt chunk over (tokens of the chunk, context before it), nanoseconds of all layers.

    Between measured chunk sizes the price follows a power law (the causal area grows with the square), between
    measured contexts a straight line (it grows with the area).
    """

    def __init__(self, rows: Rows, scale: float, name: str) -> None:
        rows = _only(rows, rows["prefills"] == 1)
        if not len(rows["prefills"]):
            raise InputError("no prefill attention rows", path=name)
        self._chunks: list[int] = []
        self._lines: list[Line] = []
        for chunk in np.unique(rows["prefill_tokens"]).tolist():
            group = _only(rows, rows["prefill_tokens"] == chunk)
            contexts, times = _medians(group["prefill_context"], group["time_us"] * scale)
            self._chunks.append(chunk)
            self._lines.append(_context_line(contexts, times, chunk))
        self._per_log = [1 / log(high / low) for low, high in pairwise(self._chunks)]
        self._whole_prompts: list[float | None] = [None] * (self._chunks[-1] + 1)
        self.floor_ns = min(self._at(place, 0) for place in range(len(self._chunks)))

    def price(self, context: int, tokens: int) -> float:
        """Nanoseconds of `tokens` new tokens after `context` cached ones."""
        if context or tokens >= len(self._whole_prompts):
            return self._interpolated(context, tokens)
        price = self._whole_prompts[tokens]
        if price is None:
            price = self._whole_prompts[tokens] = self._interpolated(0, tokens)
        return price

    def _interpolated(self, context: int, tokens: int) -> float:
        chunks = self._chunks
        if len(chunks) == 1:
            return self._at(0, context) * max(1.0, tokens / chunks[0])
        if tokens <= chunks[0]:
            return self._at(0, context)
        above = bisect_right(chunks, tokens, 1, len(chunks) - 1)
        low, high = self._at(above - 1, context), self._at(above, context)
        if low <= 0 or high <= 0:  # noise made a line fall to 0 outside what was measured
            return max(low, high)
        return float(low * (high / low) ** (log(tokens / chunks[above - 1]) * self._per_log[above - 1]))

    def _at(self, place: int, context: int) -> float:
        return value_at(self._lines[place], context)


def _context_line(contexts: list[int], times: list[float], chunk: int) -> Line:
    """The attention of a chunk as a function of the context before it.

    Measured at one context only: the area gives the growth.
    """
    if len(contexts) == 1:
        slope = times[0] / (contexts[0] + chunk / 2)
        return [], [slope * chunk / 2], [slope]
    return line_through(contexts, times)


class DecodeSurface:
    """Attention of decodes over (their number, the sum of their contexts), nanoseconds of all layers.

    Straight lines in the mean context at each measured number of decodes, and between neighbouring numbers at the same
    mean context. The line for a number of decodes is made once, when first asked for.
    """

    def __init__(self, rows: Rows, scale: float, name: str) -> None:
        if not len(rows["decodes"]):
            raise InputError("no decode attention rows", path=name)
        self._counts: list[int] = []
        self._curves: list[Line] = []
        knots = set[int]()
        for count in np.unique(rows["decodes"]).tolist():
            group = _only(rows, rows["decodes"] == count)
            contexts, times = _medians(group["decode_context"], group["time_us"] * scale)
            self._counts.append(count)
            self._curves.append(line_through(contexts, times))
            knots.update(contexts)
        self._knots = sorted(knots)
        self._lines: dict[int, Line] = {}

    def price(self, decodes: int, context_sum: int) -> float:
        """Nanoseconds of `decodes` decodes that attend to `context_sum` KV entries in total."""
        starts, constants, slopes = self._lines.get(decodes) or self.line(decodes)
        piece = bisect_right(starts, context_sum)
        return constants[piece] + context_sum * slopes[piece]

    def line(self, decodes: int) -> Line:
        """The piecewise linear price of `decodes` decodes over the sum of their contexts."""
        line = self._lines.get(decodes)
        if line is None:
            line = self._lines[decodes] = self._make_line(decodes)
        return line

    def _make_line(self, decodes: int) -> Line:
        times = [self._at(decodes, context) for context in self._knots]
        return line_through([decodes * context for context in self._knots], times)

    def _at(self, decodes: int, context: int) -> float:
        counts = self._counts
        if len(counts) == 1:
            return value_at(self._curves[0], context) * decodes / counts[0]
        above = min(max(bisect_right(counts, decodes), 1), len(counts) - 1)
        low, high = value_at(self._curves[above - 1], context), value_at(self._curves[above], context)
        share = (decodes - counts[above - 1]) / (counts[above] - counts[above - 1])
        return max(0.0, low + share * (high - low))


def _riding_surface(
    hybrid: Rows, prefill: PrefillSurface, scale: float, decode: DecodeSurface, name: str
) -> DecodeSurface:
    """What decodes add to a prefill in the same call: measured hybrid calls less the prefill alone.

    Without hybrid rows the decodes are priced as if they ran alone.
    """
    if not len(hybrid["decodes"]):
        return decode
    places = zip(hybrid["prefill_context"].tolist(), hybrid["prefill_tokens"].tolist(), strict=True)
    alone = np.array([prefill.price(context, tokens) / scale for context, tokens in places])
    return DecodeSurface({**hybrid, "time_us": np.maximum(hybrid["time_us"] - alone, 0.0)}, scale, name)


def _token_prices(rows: Rows, layers: int, name: str) -> list[float]:
    """Nanoseconds of everything that depends on the tokens of a step alone, by tokens; index 0 is unused."""
    points = {op: _points(rows, op, "tokens", name) for op in TOKEN_OPERATORS}
    tokens = np.arange(max(int(x[-1]) for x, _ in points.values()) + 1)
    total = np.zeros(len(tokens))
    for operator, (x, y) in points.items():
        times = np.interp(tokens, x, y)
        if x[-1] < tokens[-1] and len(x) > 1:
            beyond = tokens > x[-1]
            times[beyond] = y[-1] + (tokens[beyond] - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
        total += times * (1 if operator == "embedding" else layers)
    return [float(value) for value in total * _NS_PER_US]


def _sequence_prices(rows: Rows, name: str) -> list[float]:
    """Nanoseconds of final norm, LM head and sampling by the number of sequences."""
    x, y = _points(rows, "lm_head", "sequences", name)
    return [float(value) for value in np.interp(np.arange(int(x[-1]) + 1), x, y) * _NS_PER_US]


def _points(rows: Rows, operator: str, place: str, name: str) -> tuple[Floats, Floats]:
    rows = _only(rows, rows["operator"] == operator)
    if not len(rows[place]):
        raise InputError("no rows of this operator", path=name, key=operator)
    places, times = _medians(rows[place], rows["time_us"])
    return np.array(places, dtype=float), np.array(times)


def _continued(prices: list[float], at: int) -> float:
    """The mean slope of the last eighth of the grid continued beyond it."""
    last = len(prices) - 1
    back = max(1, last // 8)
    return prices[last] + (at - last) * (prices[last] - prices[last - back]) / back
