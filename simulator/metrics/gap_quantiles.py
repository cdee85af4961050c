"""The distribution of a run's inter-token latencies in a thousand numbers, for who compares runs afterwards."""

import numpy as np

from simulator.metrics.quantiles import weighted_quantiles
from simulator.results import Columns
from simulator.trace import Floats, Ints

PROBABILITIES: Floats = np.concatenate(
    [
        np.arange(450) / 500,
        np.arange(1800, 1980) / 2000,
        np.arange(19800, 19980) / 20000,
        np.arange(199800, 199981) / 200000,
        [1.0],
    ]
)
"""From 0 to 0.9 in steps of 0.002, then finer for each further nine up to 0.9999, and 1: the longest gap."""


def gap_quantiles(gap_s: Floats, counts: Ints) -> Columns:
    """Columns of `itl_quantiles.csv`: `probability`, and `itl_s`, the linear-interpolated quantile (numpy's default) of
    the gaps in seconds, each taken `counts` times; NaN where there are none."""
    return Columns({"probability": PROBABILITIES, "itl_s": weighted_quantiles(gap_s, counts, PROBABILITIES)})
