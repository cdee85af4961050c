"""Cliffs of made-up tables whose answer is in the head."""

import pandas as pd
import pytest

from profiler.cliffs import Cliff, find_cliffs, summary
from profiler.grid import LINEAR_OPERATORS

ROW = {"tokens": 0, "time_us": 0.0, "p10_us": 0.0, "p90_us": 0.0}


def _rows(times, spread=0.02, operators=LINEAR_OPERATORS):
    """The same curve for each operator: {tokens: us}, quantiles `spread` apart."""
    return pd.DataFrame(
        {
            "operator": operator,
            "tokens": tokens,
            "time_us": time,
            "p10_us": time * (1 - spread / 2),
            "p90_us": time * (1 + spread / 2),
        }
        for operator in operators
        for tokens, time in times.items()
    )


def _cliff(rows, operator, tokens):
    return next(cliff for cliff in find_cliffs(rows) if (cliff.operator, cliff.tokens) == (operator, tokens))


def test_a_step_of_14_percent():
    """100 us at 256, 114 us at 257: growth 0.14, and noise of both sides in quadrature."""
    cliff = _cliff(_rows({256: 100.0, 257: 114.0}), "mlp", 256)
    assert cliff.growth == pytest.approx(0.14)
    assert cliff.noise == pytest.approx(0.01 * 2**0.5 * 1.14)
    assert cliff.clear
    assert str(cliff) == "257 tokens cost 14 ± 2 % more than 256"


def test_the_layer_is_the_sum_of_its_linear_operators():
    """Noises add in quadrature, so the sum is relatively quieter than each part."""
    rows = _rows({256: 100.0, 257: 114.0})
    layer, part = _cliff(rows, "layer", 256), _cliff(rows, "mlp", 256)
    assert layer.growth == pytest.approx(part.growth)
    assert layer.noise == pytest.approx(part.noise / 3**0.5)


def test_a_step_may_go_down():
    """More tokens can cost less, where the library picks another kernel."""
    cliff = _cliff(_rows({768: 497.0, 769: 471.0}), "layer", 768)
    assert cliff.growth < 0
    assert str(cliff) == "769 tokens cost 5 ± 1 % less than 768"


def test_a_step_within_its_noise_is_not_clear():
    """4 % with 5 % noise says nothing."""
    assert not Cliff("mlp", 64, growth=0.04, noise=0.05).clear
    assert not Cliff("mlp", 64, growth=0.015, noise=0.001).clear


def test_tokens_without_a_measured_successor_have_no_step():
    """Only neighbours are compared, and other operators are none of it."""
    rows = pd.concat([_rows({64: 10.0, 128: 20.0, 129: 22.0}), _rows({64: 1.0, 65: 9.0}, operators=["elementwise"])])
    assert {cliff.tokens for cliff in find_cliffs(rows)} == {128}


def test_the_summary_names_the_largest_and_256_to_257():
    """Largest first; 256 to 257 is always told."""
    times = {128: 100.0, 129: 130.0, 256: 200.0, 257: 204.0, 512: 300.0, 513: 350.0, 640: 400.0, 641: 500.0}
    lines = summary(_rows(times, spread=0.01))
    assert "4 steps" in lines[0]
    assert lines[1].strip() == "129 tokens cost 30 ± 1 % more than 128"
    assert lines[-1].strip().startswith("257 tokens cost 2 ± 1 % more than 256")


def test_a_table_without_neighbours_says_so():
    """Nothing is asserted that was not measured."""
    assert "nothing is said" in summary(_rows({64: 1.0, 128: 2.0}))[0]
