"""Prices of attention calls against the replay of every tile, and their pieces."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp
from random import Random

import numpy as np
import pytest

from simulator.attention.calls import MeasuredCall
from simulator.attention.contexts import spread_contexts
from simulator.attention.correction import NO_CORRECTION, Correction
from simulator.attention.decode_prices import DecodePrices
from simulator.attention.decodes import replay_decodes
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import Kernel
from simulator.attention.mixed_prices import MixedPrices
from simulator.attention.surfaces import PrefillSurface
from tests.simulator.attention.tiles import FA2, FA2_TIMES, FA3, FA3_TIMES, call_us

KERNELS = {"fa3": (FA3, FA3_TIMES), "fa2": (FA2, FA2_TIMES)}
CHUNKS = (16, 32, 64, 65, 128, 129, 256, 257, 384, 416, 417, 512, 513, 768, 1024, 1025, 1056, 1057, 1536, 2048)
CONTEXTS = (0, 256, 1024, 4096, 8192)

Batch = tuple[list[int], list[tuple[int, int]]]


@dataclass(frozen=True)
class Prices:
    """Of chunks in any company, and of decodes alone."""

    mixed: MixedPrices
    decodes: DecodePrices


def prices_of(kernel: Kernel, times: KernelTimes) -> Prices:
    """Prices whose surface of single chunks is what the replay of every tile says."""
    surface = {
        tokens: {before: call_us(kernel, times, [], [(before, tokens)]) for before in CONTEXTS} for tokens in CHUNKS
    }
    return Prices(MixedPrices(kernel, times, PrefillSurface(surface)), DecodePrices(kernel, times, NO_CORRECTION))


@pytest.fixture(scope="module", params=sorted(KERNELS))
def priced(request: pytest.FixtureRequest) -> tuple[Kernel, KernelTimes, Prices]:
    kernel, times = KERNELS[request.param]
    return kernel, times, prices_of(kernel, times)


def batches(seed: int, count: int, chunks: int) -> list[Batch]:
    """Batches with lognormal contexts, in any order, and up to `chunks` chunks."""
    random = Random(seed)
    made = []
    for _ in range(count):
        decodes = round(exp(random.uniform(0, 4.8)))
        sigma = random.choice([0.0, 0.4, 0.9, 1.2])
        contexts = [min(max(round(900 * exp(random.gauss(0, sigma))), 2), 16000) for _ in range(decodes)]
        sizes = [round(exp(random.uniform(3, 7.6))) for _ in range(random.randint(min(chunks, 1), chunks))]
        made.append((contexts, [(random.choice([0, 0, 512, 3000]), tokens) for tokens in sizes]))
    return made


def price(prices: Prices, contexts: list[int], chunks: list[tuple[int, int]]) -> float:
    count, total, longest = len(contexts), sum(contexts), max(contexts, default=0)
    if chunks:
        return prices.mixed.price(count, total, longest, chunks)
    constant, slope, _ = prices.decodes.piece(count, total, longest)
    return constant + slope * total


@pytest.mark.parametrize(("chunks", "median", "most"), [(0, 0.06, 0.2), (1, 0.05, 0.2), (4, 0.06, 0.25)])
def test_against_every_tile(
    priced: tuple[Kernel, KernelTimes, Prices], chunks: int, median: float, most: float
) -> None:
    """From count, sum and longest alone a price is near the replay of every tile, of which the order matters too."""
    kernel, times, prices = priced
    errors = [
        abs(price(prices, contexts, pieces) / call_us(kernel, times, contexts, pieces) - 1)
        for contexts, pieces in batches(1, 60, chunks)
    ]
    assert np.median(errors) < median
    assert np.quantile(errors, 0.95) < most


def test_the_longest_counts(priced: tuple[Kernel, KernelTimes, Prices]) -> None:
    """The same sum over unlike contexts takes longer than over equal ones, alone and beside a chunk."""
    _, _, prices = priced
    equal, unlike = [2000] * 32, [1000] * 31 + [33000]
    for chunks in ([], [(0, 512)]):
        assert price(prices, unlike, chunks) > 1.1 * price(prices, equal, chunks)


def test_equal_decodes_are_replayed_exactly(priced: tuple[Kernel, KernelTimes, Prices]) -> None:
    """At the means of the pieces, equal contexts cost what every tile says."""
    kernel, times, prices = priced
    for count, mean in ((1, 16), (3, 128), (16, 1024), (48, 512), (64, 2048)):
        assert price(prices, [mean] * count, []) == pytest.approx(call_us(kernel, times, [mean] * count, []), rel=1e-6)


@pytest.mark.parametrize("longest", [700, 900, 3000])
@pytest.mark.parametrize("count", [1, 7, 90])
def test_a_piece_holds_until_it_says(priced: tuple[Kernel, KernelTimes, Prices], count: int, longest: int) -> None:
    """As contexts grow by one each step, the piece of the first step prices all up to `until`, and no more."""
    _, _, prices = priced
    context, ends = 700 * count, 0
    constant, slope, until = prices.decodes.piece(count, context, longest)
    for step in range(600):
        now = context + step * count
        direct = prices.decodes.piece(count, now, longest + step)
        if now >= until:
            constant, slope, until = direct
            ends += 1
        assert (constant, slope) == direct[:2]
        assert now < direct[2]
    assert ends


def test_single_chunks_cost_what_was_measured(priced: tuple[Kernel, KernelTimes, Prices]) -> None:
    """At measured sizes and contexts."""
    kernel, times, prices = priced
    for before, tokens in ((0, 16), (1024, 257), (8192, 2048)):
        assert prices.mixed.price(0, 0, 0, [(before, tokens)]) == call_us(kernel, times, [], [(before, tokens)])


def test_correction() -> None:
    """At a measured point the price of equal decodes is the measured one, between two it is between."""
    measured = {16: {128: 30.0, 1024: 60.0}, 64: {128: 50.0, 1024: 200.0}}
    calls = [
        MeasuredCall(count, count * mean, mean, (), time)
        for count, row in measured.items()
        for mean, time in row.items()
    ]
    correction = Correction(calls, partial(replay_decodes, FA3, FA3_TIMES))
    surface = PrefillSurface({16: {0: 8.0}})
    prices = Prices(MixedPrices(FA3, FA3_TIMES, surface), DecodePrices(FA3, FA3_TIMES, correction))
    for count, of_count in measured.items():
        for mean, time in of_count.items():
            assert price(prices, [mean] * count, []) == pytest.approx(time)
    assert 30 < price(prices, [400] * 16, []) < 60
    assert 60 < price(prices, [1024] * 32, []) < 200


@pytest.mark.parametrize(("count", "ratio"), [(2, 1.5), (10, 3.0), (64, 6.0), (256, 12.0)])
def test_stand_in_contexts(count: int, ratio: float) -> None:
    """They have the mean and the longest that are asked for, and long ones are not all early or late."""
    contexts = spread_contexts(count, 1000, 1000 * ratio)
    assert contexts.mean() == pytest.approx(1000)
    assert contexts.max() == pytest.approx(1000 * ratio, rel=0.01)
    if count > 9:
        half = count // 2
        assert 0.3 < contexts[:half].sum() / contexts.sum() < 0.7


def test_equal_stand_ins() -> None:
    """A longest no longer than the mean means equal contexts."""
    assert spread_contexts(5, 300, 300).tolist() == [300] * 5


def test_correction_of_unlike_contexts() -> None:
    """Calls of unlike decodes correct unlike ones alone, and only those that the kernel treats the same way."""
    replay = partial(replay_decodes, FA2, FA2_TIMES)

    def call(count: int, ratio: float, factor: float) -> MeasuredCall:
        time = factor * replay(count, 1024, 1024 * ratio)
        return MeasuredCall(count, count * 1024, int(1024 * ratio), (), time)

    few, many = FA2.alone.slots // FA2.alone.heads, 4 * FA2.alone.slots
    assert FA2.way_of(few) == 1
    assert FA2.way_of(many) == FA2.way_of(few + 1) == 2
    calls = [*(call(count, 1.0, 1.1) for count in (1, few, many)), call(few, 4.0, 1.5), call(many, 6.0, 0.8)]
    correction = Correction(calls, replay, FA2.way_of)
    assert correction.at(few, 1024, 1024) == pytest.approx(1.1)
    assert correction.at(few, 1024, 4096) == pytest.approx(1.5)
    assert correction.at(few + 1, 1024, 4096) == pytest.approx(0.8)
    assert 1.1 < correction.at(few, 1024, 1536) < 1.5
    assert Correction(calls[:3], replay, FA2.way_of).at(few, 1024, 8192) == 1.0


@pytest.mark.parametrize("count", [3, 30, 120])
def test_prices_do_not_jump_as_the_longest_grows(priced: tuple[Kernel, KernelTimes, Prices], count: int) -> None:
    """From token to token of the longest context, others alike, the price changes by little and less than it grows."""
    _, _, prices = priced
    seen = []
    for longest in range(800, 800 * min(count, 9), 7):
        constant, slope, _ = prices.decodes.piece(count, 800 * count, longest)
        seen.append(constant + slope * 800 * count)
    assert max(abs(later / earlier - 1) for earlier, later in pairwise(seen)) < 0.02


def test_a_wave_of_tiles_begins_where_it_does(priced: tuple[Kernel, KernelTimes, Prices]) -> None:
    """The first number of decodes whose tiles no longer fit the slots at once costs what its own replay says."""
    kernel, times, prices = priced
    first = kernel.alone.slots // kernel.alone.heads + 1
    for count in (first - 1, first, first + 1):
        assert price(prices, [4096] * count, []) == pytest.approx(
            replay_decodes(kernel, times, count, 4096, 4096), rel=0.03
        )
    assert price(prices, [4096] * first, []) > 1.05 * price(prices, [4096] * (first - 1), [])


@pytest.mark.parametrize("count", [2, 4, 24, 300])
def test_far_longer_than_the_mean(priced: tuple[Kernel, KernelTimes, Prices], count: int) -> None:
    """However long the longest is, a batch costs no less than four fifths of that one alone, and never nothing."""
    _, _, prices = priced
    for longest in (10_000, 100_000, 400_000, 1_000_000):
        alone = price(prices, [longest], [])
        assert price(prices, [*[25] * (count - 1), longest], []) > 0.8 * alone
    assert price(prices, [*[25] * (count - 1), 10**8], []) > 0


@pytest.mark.parametrize("count", [30, 256])
def test_short_contexts_beside_a_chunk(priced: tuple[Kernel, KernelTimes, Prices], count: int) -> None:
    """Decodes of few keys cost what their tiles cost to start, also beside a chunk: no saw-tooth as contexts grow."""
    _, _, prices = priced
    seen = [price(prices, [context] * count, [(0, 256)]) for context in range(2, 200)]
    assert all(later > 0.99 * earlier for earlier, later in pairwise(seen))
