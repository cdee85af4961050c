"""Fitting needs scipy, which a base install has not."""

import pytest

from simulator import regression
from simulator.errors import InputError


def test_a_missing_scipy_is_told_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, not an ImportError."""
    monkeypatch.setattr(regression, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="calibrate"):
        regression.least_squares(lambda x: x, [1.0])
    assert not regression.has_scipy()


def test_with_it_values_are_fitted() -> None:
    """The line through (0, 0): the least squares of x - 3 are at 3."""
    assert regression.least_squares(lambda x: x - 3.0, [1.0]).x[0] == pytest.approx(3.0)
