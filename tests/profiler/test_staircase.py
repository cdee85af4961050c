"""The search for steps on made-up staircases: what it finds, how sure it is, and how little it asks."""

import numpy as np
import pytest

from profiler.grid import token_counts
from profiler.staircase import Pair, Probe, Staircase, split
from tests.profiler.staircases import Stairs

GRID = token_counts(8192)


def _search(stairs, grid=GRID, most=1000):
    """The staircase found, and the numbers of probes beyond the grid and of comparisons."""
    found, probes, pairs = Staircase("mlp", frozenset(grid)), 0, 0
    for tokens in grid:
        found.learn(tokens, stairs.timed(tokens))
    while probes + pairs < most and (question := found.next_question()) is not None:
        if isinstance(question, Probe):
            probes += 1
            assert question.tokens not in found.times
            found.learn(question.tokens, stairs.timed(question.tokens))
        else:
            pairs += 1
            found.learn_round(question.tokens, stairs.compared(question.tokens))
            level = stairs.timed(question.tokens)
            found.learn(question.tokens, level)
            found.learn(question.tokens + 1, level * (1 + found.rounds[question.tokens][-1]))
    return found, probes, pairs


def _random_steps(seed, steps=12):
    """Steps of 5 to 20 %, one in three down, one in three not at a round number; one in a stretch of the grid."""
    generator = np.random.default_rng(seed)
    stretches = generator.choice(np.arange(GRID.index(64), len(GRID) - 1), steps, replace=False)
    found = {}
    for stretch in stretches:
        place = int(generator.integers(GRID[stretch], GRID[stretch + 1]))
        if generator.random() < 2 / 3:
            place = max(place // 64 * 64, GRID[stretch])
        found[place] = float(generator.uniform(0.05, 0.2) * generator.choice([1, 1, -1]))
    return found


@pytest.mark.parametrize("place", [256, 300, 333, 448, 1023, 1111, 5000, 8190])
@pytest.mark.parametrize("size", [0.14, -0.22])
def test_a_step_anywhere_is_pinned_between_neighbours(place, size):
    """Round or not, up or down; nothing else is called a step, and the size is known to a per cent."""
    found, probes, _ = _search(Stairs({place: size}, drift=0.002, noise=0.003))
    clear = [cliff for cliff in found.cliffs() if abs(cliff.growth) > 0.02]
    assert [cliff.tokens for cliff in clear] == [place]
    assert clear[0].growth == pytest.approx(size, abs=0.012)
    assert clear[0].error <= 0.01
    assert probes < 90


def test_without_noise_only_the_step_is_compared():
    """Three rounds of one pair, whose interval is a point."""
    found, _, pairs = _search(Stairs({448: -0.22}, drift=0.0, noise=0.0, slope=0.0))
    [cliff] = found.cliffs()
    assert (cliff.tokens, cliff.rounds, pairs) == (448, 3, 3)
    assert cliff.growth == pytest.approx(-0.22)
    assert cliff.error == pytest.approx(0.0, abs=1e-12)


def test_nearly_all_of_many_steps_are_found():
    """A dozen up and down in each of 20 staircases, at the noise of a GPU: 19 of 20 of them, and few false ones."""
    known = found_steps = false = 0
    for seed in range(20):
        steps = _random_steps(seed)
        cliffs = _search(Stairs(steps, generator=np.random.default_rng(seed)))[0].cliffs()
        known += len(steps)
        found_steps += sum(cliff.tokens in steps for cliff in cliffs)
        false += sum(cliff.tokens not in steps and abs(cliff.growth) > 0.02 for cliff in cliffs)
    assert found_steps / known > 0.95
    assert false == 0


@pytest.mark.parametrize("noise", [0.002, 0.004, 0.008])
def test_intervals_cover_the_true_size_as_often_as_they_say(noise):
    """95 % of some 300, although the rounds stop as soon as the interval is narrow."""
    covered = []
    for seed in range(25):
        stairs = Stairs(_random_steps(seed), noise=noise, generator=np.random.default_rng(1000 + seed))
        covered += [cliff.low <= stairs.growth(cliff.tokens) <= cliff.high for cliff in _search(stairs)[0].cliffs()]
    assert len(covered) > 250
    assert 0.92 <= np.mean(covered) <= 0.99


def test_few_points_are_asked():
    """Of 8192 places with 12 steps: 65 of the first grid, a hundred probes and four comparisons a step on average."""
    asked = [_search(Stairs(_random_steps(seed), generator=np.random.default_rng(seed)))[1:] for seed in range(20)]
    assert len(GRID) < 68
    assert np.mean([probes for probes, _ in asked]) < 100
    assert np.mean([pairs for _, pairs in asked]) < 48


def test_a_smooth_curve_costs_a_few_probes_a_stretch():
    """Time grows with the tokens alone: nothing is found, and nothing is resolved to the last token."""
    found, probes, pairs = _search(Stairs({}, slope=0.6, drift=0.0, noise=0.0))
    assert found.cliffs() == []
    assert pairs == 0
    assert probes < 3 * len(GRID)


def test_the_largest_step_comes_first():
    """With time for ten answers only it is the 30 % that is pinned, not the 6 %."""
    found, _, _ = _search(Stairs({192: 0.06, 700: 0.30}, drift=0.002, noise=0.002), most=10)
    assert list(found.rounds) == [700]


def test_noise_that_looks_like_a_step_is_refuted():
    """One outlier of 10 % at 257: two comparisons say that there is nothing."""
    found = Staircase("mlp")
    for tokens, time in ((256, 100.0), (257, 110.0)):
        found.learn(tokens, time)
    for _ in range(2):
        assert found.next_question() == Pair(256)
        found.learn_round(256, 0.001)
    found.learn(257, 100.0)
    assert found.next_question() is None


def test_an_interval_that_says_nothing_is_no_cliff():
    """Rounds of 1, 3 and 5 %: 3 ± 5 %. Of 20, 20.5 and 21 %: 20.5 ± 1.2 %."""
    found = Staircase("mlp", times={64: 1.0, 65: 1.0, 128: 1.0, 129: 1.2})
    for tokens, growth in ((64, 0.01), (64, 0.03), (64, 0.05), (128, 0.20), (128, 0.205), (128, 0.21)):
        found.learn_round(tokens, growth)
    [cliff] = found.cliffs()
    assert (cliff.tokens, cliff.growth) == (128, pytest.approx(0.205))
    assert cliff.error == pytest.approx(4.303 * 0.005 / 3**0.5)


def test_a_pair_whose_rounds_were_cut_short_is_no_cliff():
    """Two rounds that agree by chance have a narrow interval, which the third need not confirm."""
    stairs = Staircase("lm_head", frozenset())
    for growth in (0.0968, 0.0969):
        stairs.learn_round(831, growth)
    assert stairs.cliffs() == []
    stairs.learn_round(831, 0.085)
    [cliff] = stairs.cliffs()
    assert (cliff.tokens, cliff.rounds) == (831, 3)
    assert cliff.error > 0.01


def test_a_wanted_pair_is_compared_whatever_its_size():
    """The layer's step needs the flat operators too; as many rounds as any, also of places not timed so far."""
    found = Staircase("o_proj")
    found.learn(256, 100.0)
    found.wanted.add(256)
    for growth in (0.001, -0.002, 0.0):
        assert found.next_question(only_wanted=True) == Pair(256)
        found.learn_round(256, growth)
        found.learn(257, 100.0)
    assert found.next_question(only_wanted=True) is None


def test_a_finished_cliff_is_not_compared_again():
    """A resumed run keeps what it knows."""
    stairs = Stairs({256: 0.14}, drift=0.001, noise=0.001)
    [known] = _search(stairs)[0].cliffs()
    again = Staircase("mlp", frozenset(GRID), finished={256: known})
    for tokens in (*GRID, 257):
        again.learn(tokens, stairs.true(tokens))
    while (question := again.next_question()) is not None:
        assert isinstance(question, Probe)
        again.learn(question.tokens, stairs.true(question.tokens))
    assert again.cliffs() == [known]


def test_round_numbers_are_tried_first_and_every_place_is_reached():
    """256 to 320: 257, then the middle. Halving goes on to the last token."""
    assert split(256, 320) == 257
    assert split(257, 320) == 288
    for place in range(257, 320):
        low, high, probes = 256, 320, 0
        while high - low > 1:
            middle = split(low, high)
            assert low < middle < high
            low, high, probes = (low, middle, probes + 1) if middle > place else (middle, high, probes + 1)
        assert low == place
        assert probes <= 10
