"""What an accurate simulation of an engine should reach, and how far two measurements of it are from each other."""

import math

from simulator.compare.figures import Figure

LIMITS = {
    "output_tokens_per_s": 2.0, "ttft_p50_s": 8.0, "ttft_p90_s": 10.0, "ttft_p99_s": 15.0, "itl_mean_s": 4.0,
    "itl_p50_s": 5.0, "itl_p90_s": 12.0, "itl_p99_s": 12.0, "e2e_p50_s": 6.0, "e2e_p99_s": 6.0,
}  # fmt: skip
"""Per cent without sign, by the names of `summary.csv`."""
METRICS = (*LIMITS, "tpot_mean_s", "tpot_p50_s", "duration_s")
"""The figures of a validation, in their order."""
WIDER = 1.5
"""Times as wide are the limits of runs on more than one GPU, whose processes wait for each other."""
SMALL_S = 0.0015
"""An error of fewer seconds is within any limit."""
NOISE = {
    "itl_mean_s": 4.0, "tpot_mean_s": 4.0, "ttft_p50_s": 4.0, "itl_p50_s": 4.0, "tpot_p50_s": 4.0, "e2e_p50_s": 4.0,
    "e2e_p99_s": 4.0, "itl_p90_s": 8.5, "itl_p99_s": 8.5,
}  # fmt: skip
"""Per cent by which two measured runs differed at most when repeated on another machine, where that is known."""
STEP_LIMITS = {"decodes only": 3.0, "with prefills": 4.0}
"""Median of the absolute errors of step times, per cent, by kind."""
STEP_P95 = 10.0
"""95th percentile of them."""


def limit_of(name: str, gpus: int) -> float | None:
    """Per cent without sign for a run on so many GPUs; None where the figure has no limit."""
    limit = LIMITS.get(name)
    return limit if limit is None or gpus == 1 else WIDER * limit


def within(figure: Figure, gpus: int) -> bool | None:
    """Whether a figure of a run on so many GPUs is within its limit; None where it has none, or no error."""
    limit, error = limit_of(figure.name, gpus), figure.error_percent
    if limit is None or math.isnan(error):
        return None
    return abs(error) <= limit or (figure.in_seconds and abs(figure.other - figure.reference) < SMALL_S)
