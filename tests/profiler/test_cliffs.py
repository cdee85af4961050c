"""Cliffs of made-up tables whose answer is in the head."""

import pandas as pd
import pytest

from profiler.cliffs import described, find_cliffs, is_clear
from profiler.grid import LINEAR_OPERATORS
from simulator.cost_table import Cliff
from tests.profiler.staircases import linear_rows


def _cliff(rows, operator, tokens, compared=()):
    return next(cliff for cliff in find_cliffs(rows, compared) if (cliff.operator, cliff.tokens) == (operator, tokens))


def test_a_step_of_14_percent():
    """100 us at 256, 114 us at 257: growth 0.14, and the spreads of both sides in quadrature."""
    cliff = _cliff(linear_rows({256: 100.0, 257: 114.0}), "mlp", 256)
    assert cliff.growth == pytest.approx(0.14)
    assert cliff.error == pytest.approx(0.01 * 2**0.5 * 1.14)
    assert is_clear(cliff)
    assert described(cliff) == "257 tokens cost 14 ± 2 % more than 256"


def test_the_layer_is_the_sum_of_its_linear_operators():
    """Errors add in quadrature, so the sum is relatively quieter than each part."""
    rows = linear_rows({256: 100.0, 257: 114.0})
    layer, part = _cliff(rows, "layer", 256), _cliff(rows, "mlp", 256)
    assert layer.growth == pytest.approx(part.growth)
    assert layer.error == pytest.approx(part.error / 3**0.5)


def test_what_was_compared_goes_before_the_rows():
    """The rows say 14 %, the comparisons 12: of the layer, a third of them compared, 13.33 %."""
    rows = linear_rows({256: 100.0, 257: 114.0})
    compared = Cliff("mlp", 256, 0.12, 0.118, 0.122, 5)
    assert _cliff(rows, "mlp", 256, [compared]) == compared
    layer = _cliff(rows, "layer", 256, [compared])
    assert layer.growth == pytest.approx(0.4 / 3)
    assert layer.rounds == 0


def test_a_layer_of_compared_steps_has_their_interval():
    """12 ± 0.3 % each of three equal parts: 12 ± 0.3 / sqrt 3."""
    rows = linear_rows({256: 100.0, 257: 114.0})
    compared = [Cliff(name, 256, 0.12, 0.117, 0.123, 5) for name in LINEAR_OPERATORS]
    layer = _cliff(rows, "layer", 256, compared)
    assert (layer.growth, layer.error) == (pytest.approx(0.12), pytest.approx(0.003 / 3**0.5))
    assert layer.rounds == 5
    assert described(layer) == "257 tokens cost 12.0 ± 0.2 % more than 256"


def test_a_step_may_go_down():
    """More tokens can cost less, where the library picks another kernel."""
    cliff = _cliff(linear_rows({768: 497.0, 769: 471.0}), "layer", 768)
    assert cliff.growth < 0
    assert described(cliff) == "769 tokens cost 5 ± 1 % less than 768"


def test_a_step_within_its_noise_is_not_clear():
    """4 % with 5 % noise says nothing; with a spread of 2 % of separate measurements neither, compared it does."""
    assert not is_clear(Cliff("mlp", 64, 0.04, -0.01, 0.09, rounds=5))
    assert not is_clear(Cliff("mlp", 64, 0.04, 0.02, 0.06, rounds=0))
    assert is_clear(Cliff("mlp", 64, 0.04, 0.02, 0.06, rounds=5))
    assert not is_clear(Cliff("mlp", 64, 0.015, 0.014, 0.016, rounds=5))


def test_tokens_without_a_measured_successor_have_no_step():
    """Only neighbours are compared, and operators that are not matrix products are none of it."""
    rows = pd.concat([linear_rows({64: 10.0, 128: 20.0, 129: 22.0}), linear_rows({64: 1.0, 65: 9.0}, ["elementwise"])])
    assert {cliff.tokens for cliff in find_cliffs(rows)} == {128}
