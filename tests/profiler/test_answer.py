"""The closing advice on tables whose answer is in the head."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from profiler.answer import answer, best_totals, step_us
from profiler.grid import LINEAR_OPERATORS
from simulator.cost_table import Cliff
from tests.profiler.staircases import linear_rows
from tests.profiler.test_sweep import METADATA

SMOOTH = linear_rows({1: 1.0, 1024: 2.0}, ["elementwise", "embedding"])


def _table(times, spread=0.001):
    return pd.concat([linear_rows(times, spread=spread), SMOOTH])


def test_a_chunk_beside_the_decodes_ends_below_the_cliff():
    """14 % more at 257: with 40 decodes 216 tokens, with 100 of them 156."""
    rows = _table({1: 90.0, 256: 100.0, 257: 114.0, 512: 120.0})
    text = "\n".join(answer(rows, METADATA, 40))
    assert "257 tokens cost 14 ± 1 % more than 256; with 40 decodes take a 216-token chunk (256 tokens in all)" in text
    assert "take a 156-token chunk" in "\n".join(answer(rows, METADATA, 100))


def test_the_interval_is_that_of_the_comparisons():
    """Compared: 13.8 ± 0.4 % in each product."""
    rows = _table({256: 100.0, 257: 113.8, 1024: 300.0})
    compared = tuple(Cliff(name, 256, 0.138, 0.131, 0.145, 4) for name in LINEAR_OPERATORS)
    lines = answer(rows, replace(METADATA, cliffs=compared), 40)
    assert "1 of them compared in turn, ± is the 95 % interval" in lines[0]
    assert lines[1].strip() == "257 tokens cost 13.8 ± 0.4 % more than 256"


def test_a_step_down_is_worth_a_token():
    """449 tokens cost less than 448."""
    text = "\n".join(answer(_table({448: 120.0, 449: 95.0, 1024: 200.0}), METADATA, 40))
    assert "449 tokens cost 21 ± 1 % less than 448: where 448 is reached, one token more is cheaper." in text


def test_the_largest_are_listed_and_256_to_257_is_always_told():
    """Largest first; at most five and the famous one."""
    times = {}
    for place, growth in ((64, 1.1), (128, 1.3), (192, 1.2), (256, 1.004), (512, 1.17), (640, 1.25), (768, 1.15)):
        times |= {place: 100.0, place + 1: 100.0 * growth}
    lines = [line.strip() for line in answer(_table(times), METADATA, 40)]
    assert "7 steps" in lines[0]
    assert lines[1] == "129 tokens cost 30 ± 1 % more than 128"
    assert lines[6].startswith("257 tokens cost 0 ± 1 % more than 256, which the noise may explain")


def test_the_best_total_up_to_a_limit_has_the_most_tokens_per_second():
    """100 us to 200 tokens, 150 us from 201: up to 256 tokens 200 are best, up to 512 all."""
    times = np.concatenate([np.full(201, 100.0), np.full(400, 150.0)])
    totals = {total.limit: total for total in best_totals(times, range(1, 601))}
    assert totals[128].tokens == 128
    assert totals[256].tokens == 200
    assert totals[256].rate == pytest.approx(2e6)
    assert totals[512].tokens == 512
    assert 1024 not in totals
    assert [total.tokens for total in best_totals(times, [128, 400])] == [128, 400]


def test_of_totals_that_are_alike_the_largest_is_taken():
    """200 tokens are half a per cent better than 256: noise; 3 % is not."""
    for cost, taken in ((1.005, 256), (1.03, 200)):
        times = np.arange(300.0)
        times[201:] *= cost
        assert best_totals(times, [128, 200, 256])[1].tokens == taken


def test_a_step_is_all_layers_and_one_embedding():
    """Three products of 10 us and norms of 1 us in each of two layers, an embedding of 1 us."""
    rows = pd.concat([linear_rows({1: 10.0, 64: 10.0}), linear_rows({1: 1.0, 64: 1.0}, ["elementwise", "embedding"])])
    times = step_us(rows, METADATA)
    assert METADATA.model.num_hidden_layers == 2
    assert times[64] == pytest.approx(2 * 31 + 1)
    assert len(times) == 65


def test_nothing_is_said_of_what_was_not_measured():
    """No neighbours, no cliffs; an operator missing, no totals."""
    lines = answer(_table({64: 1.0, 128: 2.0}), METADATA, 40)
    assert "nothing is said" in lines[0]
    assert any(line.startswith("Not every operator") for line in answer(linear_rows({64: 1.0}), METADATA, 40))


def test_limits_that_decodes_alone_fill_are_left_out():
    """With 200 decodes no chunk fits into 128 tokens."""
    lines = answer(_table({1: 90.0, 128: 95.0, 256: 97.0, 512: 100.0}), METADATA, 200)
    assert [line.split()[0] for line in lines[-2:]] == ["256", "512"]
