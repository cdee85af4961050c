"""The schedule of tiles: splits, slots, and the time in which work fills them up."""

from math import ceil
from random import Random

import numpy as np
import pytest

from simulator.attention.decodes import decode_ends
from simulator.attention.kernels import TILE_KEYS, UNSPLIT, kernel_of
from simulator.attention.replay import Profile, Rate, done_at, slots_done
from tests.simulator.attention.tiles import FA2, FA2_TIMES, FA3, FA3_TIMES, GROUPED


def test_slots_take_tiles_in_order() -> None:
    """Whoever is free first gets the next."""
    assert slots_done(np.array([3.0, 1.0, 1.0, 4.0]), 2).tolist() == [3.0, 6.0]
    assert slots_done(np.array([5.0]), 3).tolist() == [0.0, 0.0, 5.0]


def test_slots_against_a_list() -> None:
    """Many tiles, against looking for the smallest each time."""
    random = Random(3)
    tiles = [random.uniform(1, 20) for _ in range(400)]
    slots = [0.0] * 33
    for tile in tiles:
        slots[slots.index(min(slots))] += tile
    assert slots_done(np.array(tiles), 33) == pytest.approx(sorted(slots))


def test_time_of_few_and_of_many() -> None:
    """One tile runs at the latency; as many as the memory serves at most take the bandwidth's time."""
    rate = Rate(latency=1.0, bandwidth=0.01, start=0.0, sharpness=8.0)
    assert done_at(np.array([0.0, 10.0]), rate, 132)[-1] == pytest.approx(10.0, rel=1e-3)
    full = done_at(np.full(1000, 10.0), rate, 132)
    assert full[-1] == pytest.approx(10.0 * 10.0, rel=1e-3)


def test_sharing_a_multiprocessor_slows() -> None:
    """With two tiles a multiprocessor the latency grows."""
    rate = Rate(1.0, 1e-6, 0.0, 2.0, shared=0.5)
    assert rate.block(132, 132) == pytest.approx(1.0)
    assert rate.block(264, 132) == pytest.approx(1.5)


def test_level() -> None:
    """Work keeps the slots busy that are free before it ends."""
    profile = Profile([0.0, 0.0, 10.0, 20.0])
    assert profile.level(0.0) == 0.0
    assert profile.level(8.0) == 4.0
    assert profile.level(20.0 + 3 * 5) == 15.0
    assert profile.level(1000.0) == (1000 + 30) / 4


def test_splits_of_fa3() -> None:
    """A lone decode's keys are cut where that fills the multiprocessors; a long chunk's and short keys are not."""
    form = FA3.alone
    assert FA3.splits(form, form.heads, 512) == 1
    assert FA3.splits(form, form.heads, 16384) > 8
    assert FA3.splits(FA3.mixed, FA3.mixed.heads * ceil(512 / FA3.mixed.tokens), 8192) == 1
    below, above = (FA3.splits(FA3.mixed, 8 * ceil(tokens / 32), 4096) for tokens in (416, 417))
    assert below > 1
    assert above == 1


def test_splits_of_fa2() -> None:
    """Decodes alone are cut alike until the batch fills 80 % of the slots: 26 of 8 KV heads do not, 27 do."""
    form = FA2.alone
    assert FA2.splits(form, 26 * 8, 4096) > 1
    assert FA2.splits(form, 27 * 8, 4096) == 1
    assert FA2.splits(FA2.mixed, 1, 100_000) == 1


def test_forms_of_ungrouped_heads() -> None:
    """With as many KV heads as query heads FA2 has one form and splits nothing."""
    from dataclasses import replace

    kernel = kernel_of("flash-attn", replace(GROUPED, num_key_value_heads=32), 132)
    assert kernel.alone == kernel.mixed
    assert not kernel.alone.uniform_splits


def test_cut_keys_are_all_read() -> None:
    """Whatever is cut, the blocks of the parts sum to those of the requests."""
    contexts = np.array([100.0, 5000.0, 130.0, 16000.0])
    for most in (UNSPLIT, 40.0, 3.0):
        ends, parts = decode_ends(contexts, FA3.alone, FA3_TIMES.alone, 132, most_blocks=most, parts=16)
        assert len(ends) == 132
        assert ends == sorted(ends)
        assert parts >= len(contexts)
    whole, _ = decode_ends(contexts, FA3.alone, FA3_TIMES.alone, 132, most_blocks=UNSPLIT, parts=16)
    cut, parts = decode_ends(contexts, FA3.alone, FA3_TIMES.alone, 132, most_blocks=8.0, parts=16)
    assert parts == 1 + 5 + 1 + 16
    assert cut[-1] < 0.3 * whole[-1]


def test_uniform_cuts() -> None:
    """All requests alike, but no more parts than blocks."""
    _, parts = decode_ends(np.array([100.0, 2000.0]), FA2.alone, FA2_TIMES.alone, 132, most_blocks=UNSPLIT, parts=4)
    assert parts == 1 + 4
    assert TILE_KEYS == 128
