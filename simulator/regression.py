"""Robust least squares by scipy, an extra: nobody needs it to simulate, and it is a third of the base install."""

from importlib.util import find_spec
from typing import Any

from simulator.errors import InputError


def has_scipy() -> bool:
    """Whether it is installed."""
    return find_spec("scipy") is not None


def least_squares(*arguments: Any, **options: Any) -> Any:
    """`scipy.optimize.least_squares`. Raises InputError where scipy is not installed."""
    if not has_scipy():
        raise InputError('fitting needs scipy; install it with pip install "chunkwise[calibrate]"')
    from scipy.optimize import least_squares as found

    return found(*arguments, **options)
