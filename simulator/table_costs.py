"""Prices of steps from a measured table.

A step costs embedding + layers x (linear operators + elementwise + attention) + LM head. The linear part is looked up
by the step's tokens, piecewise linear between measured points: where both n and n + 1 were measured, a tile cliff
between them stays a cliff. Attention is priced by `simulator.attention`. A step that takes longer than the GPU can keep
its clocks up takes longer still by a measured factor. A price needs O(chunks) work and never looks at single decodes.

Outside the measured grid the nearest measured trend is continued; `GridRange` says where that begins,
and `steps_beyond_*` count the steps whose contexts were concerned.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import hypot
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.attention.calls import MeasuredCall, guess_times
from simulator.attention.correction import Correction
from simulator.attention.decode_prices import DecodePrices
from simulator.attention.decodes import replay_decodes
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import Kernel, kernel_of
from simulator.attention.mixed_prices import MixedPrices
from simulator.attention.surfaces import PrefillSurface
from simulator.cost_table import CostTable
from simulator.errors import InputError
from simulator.exchanges import Exchanges
from simulator.power_limit import Heat
from simulator.table_rows import TOKEN_OPERATORS
from simulator.trace import Floats

_NS_PER_US = 1000.0


@dataclass(frozen=True)
class GridRange:
    """Largest measured tokens of a step, sequences, prefill context, decodes, decode context and sum of these."""

    tokens: int
    sequences: int
    prefill_context: int
    decodes: int
    decode_context: int
    decode_contexts: int


class TableCosts:
    """Step prices from `table` for the model it was measured with; of one rank among several, with what it exchanges
    with the others in each step."""

    def __init__(self, table: CostTable, exchanges: Exchanges | None = None) -> None:
        rows, layers = table.rows, table.metadata.model.num_hidden_layers
        self._token_ns = token_prices(table)
        self._embedding_ns = _token_prices(rows, ("embedding",), layers, table.name)
        self._sequence_ns = _sequence_prices(rows, table.name)
        self._layers_ns = layers * _NS_PER_US
        mixed, decodes = attention_prices(table, self._layers_ns, lambda n: self._besides_attention_ns(n, n))
        self._attention_us = mixed.price
        self.decode_piece = decodes.piece  # in nanoseconds of the whole step
        attention = _only(rows, rows["operator"] == "attention")
        self.grid = GridRange(
            int(rows["tokens"].max()),
            int(rows["sequences"].max()),
            int(attention["prefill_context"].max()),
            int(attention["decodes"].max()),
            int(attention["decode_context"].max()),
            int((attention["decodes"] * attention["decode_context"]).max()),
        )
        self.measured_context: float = self.grid.decode_context
        self._prefill_context = self.grid.prefill_context
        noise, fitted = table.metadata.noise.get("repeat_max_percent"), table.metadata.attention_model
        self._noise = None if noise is None else noise / 100
        self._errors = fitted.error if fitted else {}
        self._power_limit = table.metadata.power_limit
        self._at_rest: Heat | None = None
        self.steps_beyond_prefill_context = 0
        self.steps_beyond_decode_context = 0
        self._slowed = _Slowed([], [])
        self._slowed = _slowed(self, rows, layers)
        self._computing_ns = self._token_ns
        if exchanges is not None:
            of_tokens, of_sequences = exchanges.tokens_ns, exchanges.sequences_ns
            self._token_ns = [time_ns + of_tokens(tokens) for tokens, time_ns in enumerate(self._token_ns)]
            self._sequence_ns = [time_ns + of_sequences(count) for count, time_ns in enumerate(self._sequence_ns)]
            once_ns = exchanges.embedding_ns
            self._embedding_ns = [time_ns + once_ns(tokens) for tokens, time_ns in enumerate(self._embedding_ns)]

    def step_ns(self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]) -> int:
        """See `StepCosts.step_ns`."""
        if not chunks:
            return int(self._decodes_ns(decodes, decode_context, longest)) if decodes else 0
        return int(self.slowed_ns(self._mixed_ns(decodes, decode_context, longest, chunks)))

    def parts_ns(
        self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]
    ) -> tuple[float, float, float]:
        """The same step in three parts: embedding, all layers, and final norm, LM head and sampling; before
        `slowed_ns`."""
        if chunks:
            whole_ns = self._mixed_ns(decodes, decode_context, longest, chunks)
        else:
            whole_ns = self._decodes_ns(decodes, decode_context, longest)
        embedding_ns = self.embedding_ns(decodes + sum(tokens for _, tokens in chunks))
        head_ns = self._sequences_ns(decodes + len(chunks))
        return embedding_ns, whole_ns - embedding_ns - head_ns, head_ns

    def slowed_ns(self, time_ns: float) -> float:
        """What a step with chunks takes whose parts sum to `time_ns`."""
        return time_ns if time_ns <= self._slowed.from_ns else self._slowed.time(time_ns)

    def embedding_ns(self, tokens: int) -> float:
        """The embedding of so many tokens."""
        prices = self._embedding_ns
        return prices[tokens] if tokens < len(prices) else _continued(prices, tokens)

    def _decodes_ns(self, decodes: int, decode_context: int, longest: int) -> float:
        constant, slope, _ = self.decode_piece(decodes, decode_context, longest)
        if decode_context > decodes * self.measured_context:
            self.count_beyond(decodes, decode_context, 1)
        return constant + slope * decode_context

    def _mixed_ns(self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]) -> float:
        if decode_context > decodes * self.measured_context:
            self.steps_beyond_decode_context += 1
        before, tokens = chunks[0]
        tokens += decodes
        for context, new in chunks[1:] if len(chunks) > 1 else ():
            tokens += new
            if context > before:
                before = context
        if before > self._prefill_context:
            self.steps_beyond_prefill_context += 1
        attention_ns = self._attention_us(decodes, decode_context, longest, chunks) * self._layers_ns
        return self._besides_attention_ns(tokens, decodes + len(chunks)) + attention_ns

    def interval_ns(
        self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """(low, high) of a step that has work: what the table's own noise and the fit of its attention leave open.

        Of the operators looked up, and of one chunk alone, the largest difference between repeats in the table's run;
        of other attention the 95 % quantile of the errors over the rows that the constants were fitted to. Added in
        quadrature. None where the table has no such figures.
        """
        noise, errors = self._noise, self._errors
        kind = "decode" if not chunks else "hybrid" if decodes else "prefill"
        if noise is None or f"{kind}_p95" not in errors:
            return None
        price = self.step_ns(decodes, decode_context, longest, chunks)
        tokens = decodes + sum(new for _, new in chunks)
        looked_up = self._besides_attention_ns(tokens, decodes + len(chunks))
        attention = max(price - looked_up, 0.0)
        of_attention = noise if not decodes and len(chunks) == 1 else errors[f"{kind}_p95"]
        open_ns = hypot(noise * looked_up, of_attention * attention)
        return max(int(price - open_ns), 0), int(price + open_ns)

    def once_ns(self, tokens: int, sequences: int) -> float:
        """What a step does once, not in each layer: embedding and LM head."""
        return self._embedding_ns[min(tokens, len(self._embedding_ns) - 1)] + self._sequences_ns(sequences)

    def token_ns(self, tokens: int) -> float:
        """See `StepCosts.token_ns`."""
        prices = self._token_ns
        return prices[tokens] if tokens < len(prices) else _continued(prices, tokens)

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """See `StepCosts.count_beyond`: contexts grew by `decodes` in each step."""
        excess = decode_context - decodes * self.grid.decode_context
        self.steps_beyond_decode_context += min(steps, -(-excess // decodes))

    def _besides_attention_ns(self, tokens: int, sequences: int) -> float:
        prices = self._token_ns
        of_tokens = prices[tokens] if tokens < len(prices) else _continued(prices, tokens)
        return of_tokens + self._sequences_ns(sequences)

    def heat(self) -> Heat | None:
        """The state of the table's GPU, at rest; None where its power limit is not known."""
        if self._power_limit is None:
            return None
        if self._at_rest is None:
            self._at_rest = Heat(self._power_limit, self._computing_ns)
        return copy(self._at_rest)  # what it knows of all numbers of tokens is the same for all GPUs

    def _sequences_ns(self, sequences: int) -> float:
        prices = self._sequence_ns
        return prices[sequences] if sequences < len(prices) else _continued(prices, sequences)


class _Slowed:
    """What a long step takes: `factors` times the sum of its parts of `times_ns`, straight between and level beyond."""

    def __init__(self, times_ns: Sequence[float], factors: Sequence[float]) -> None:
        self._times, self._factors = list(times_ns), list(factors)
        self.from_ns = self._times[0] if self._times else float("inf")

    def time(self, time_ns: float) -> float:
        """Nanoseconds of a step whose parts sum to `time_ns`."""
        times, factors = self._times, self._factors
        above = bisect_right(times, time_ns)
        if above == len(times):
            return time_ns * factors[-1]
        share = (time_ns - times[above - 1]) / (times[above] - times[above - 1])
        return time_ns * (factors[above - 1] + share * (factors[above] - factors[above - 1]))


def _slowed(costs: TableCosts, rows: "Rows", layers: int) -> _Slowed:
    """From the rows of whole layers, run for as long as a step: prompts of `tokens` each, none without such rows."""
    whole = _only(rows, rows["operator"] == "whole_layer")
    times, factors = [], [1.0]
    for tokens, measured_us in _medians(whole["tokens"].tolist(), whole["time_us"].tolist()).items():
        apart_ns = costs.step_ns(0, 0, 0, [(0, tokens)])
        of_layers = apart_ns - costs.once_ns(tokens, 1)
        times.append(float(apart_ns))
        factors.append(max(1 + (measured_us * layers * _NS_PER_US - of_layers) / apart_ns, factors[-1]))
    return _Slowed([times[0] / 2, *times], factors) if times else _Slowed([], [])


def token_prices(table: CostTable) -> list[float]:
    """Nanoseconds of what depends on the tokens of a step alone, by tokens; index 0 is unused.

    Raises InputError where an operator has no rows.
    """
    return _token_prices(table.rows, TOKEN_OPERATORS, table.metadata.model.num_hidden_layers, table.name)


def attention_prices(
    table: CostTable, scale: float = 1.0, fixed: Callable[[int], float] = lambda _: 0.0
) -> tuple[MixedPrices, DecodePrices]:
    """Prices of attention by the rows of `table`, with its fitted constants or, without them, a guess.

    Those of decodes alone are times `scale` and have `fixed(decodes)` added.
    """
    calls = attention_calls(table)
    kernel = table_kernel(table)
    prefill = prefill_surface(calls, table.name)
    if not any(not call.chunks for call in calls):
        raise InputError("no decode attention rows", path=table.name)
    times = table.metadata.attention_model or guess_times(kernel, calls)
    correction = decode_correction(kernel, times, calls)
    return MixedPrices(kernel, times, prefill), DecodePrices(kernel, times, correction, scale, fixed)


def table_kernel(table: CostTable) -> Kernel:
    """The kernel that the table's attention rows were measured with."""
    metadata = table.metadata
    shard = metadata.model.shard(metadata.tensor_parallel)
    return kernel_of(metadata.attention.backend, shard, metadata.gpu.sm_count)


def attention_calls(table: CostTable) -> list[MeasuredCall]:
    """The attention rows of a table."""
    rows = _only(table.rows, table.rows["operator"] == "attention")
    names = ("decodes", "decode_context", "decode_longest", "prefills", "prefill_tokens", "prefill_context", "time_us")
    return [
        MeasuredCall(
            decodes, decodes * mean, max(longest, mean) if decodes else 0, ((before, tokens),) * prefills, time
        )
        for decodes, mean, longest, prefills, tokens, before, time in zip(
            *(rows[name].tolist() for name in names), strict=True
        )
    ]


def prefill_surface(calls: Sequence[MeasuredCall], name: str) -> PrefillSurface:
    """The surface of single chunks. Raises InputError without one."""
    single = [call for call in calls if not call.decodes and len(call.chunks) == 1]
    if not single:
        raise InputError("no prefill attention rows", path=name)
    points: dict[int, dict[int, float]] = {}
    for (before, tokens), time in _medians((c.chunks[0] for c in single), (c.time_us for c in single)).items():
        points.setdefault(tokens, {})[before] = time
    return PrefillSurface(points)


def decode_correction(kernel: Kernel, times: KernelTimes, calls: Sequence[MeasuredCall]) -> Correction:
    """Measured calls of decodes alone over their replay."""
    alone = [call for call in calls if not call.chunks]
    return Correction(alone, partial(replay_decodes, kernel, times), kernel.way_of)


Rows = Mapping[str, NDArray[Any]]
"""Rows of a cost table: arrays of equal length by column."""


def _only(rows: Rows, wanted: NDArray[np.bool_]) -> Rows:
    return {name: column[wanted] for name, column in rows.items()}


def _medians(places: Iterable[Any], times: Iterable[float]) -> dict[Any, float]:
    """The median time at each place, in ascending order of places."""
    at: dict[Any, list[float]] = {}
    for place, time in zip(places, times, strict=True):
        at.setdefault(place, []).append(time)
    return {place: median(at[place]) for place in sorted(at)}


def _token_prices(rows: Rows, operators: Sequence[str], layers: int, name: str) -> list[float]:
    """Nanoseconds of `operators`, which depend on the tokens of a step alone, by tokens; index 0 is unused."""
    points = {op: _points(rows, op, "tokens", name) for op in operators}
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
    medians = _medians(rows[place].tolist(), rows["time_us"].tolist())
    return np.array(list(medians), dtype=float), np.array(list(medians.values()))


def _continued(prices: list[float], at: int) -> float:
    """The mean slope of the last eighth of the grid continued beyond it."""
    last = len(prices) - 1
    back = max(1, last // 8)
    return prices[last] + (at - last) * (prices[last] - prices[last - back]) / back
