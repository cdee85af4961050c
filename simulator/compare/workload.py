"""Whether two runs served the same workload, and what became of each request where they did."""

import math
from dataclasses import dataclass

import numpy as np

from simulator.compare.run import Requests, Run
from simulator.trace import Floats

TOLERANCE = 0.02
"""The relative difference from which a comparison is of two workloads rather than of two runs."""


def workload_warnings(reference: Run, other: Run) -> list[str]:
    """What plainly differs in the work that the two were given; where a file has no arrivals, in how long it took."""
    pairs = [
        ("requests", reference.num_requests, other.num_requests),
        ("prompt tokens", reference.prompt_tokens, other.prompt_tokens),
        ("output tokens", reference.output_tokens, other.output_tokens),
    ]
    if math.isfinite(_arrivals_s(reference) + _arrivals_s(other)):
        pairs.append(("s from first to last arrival", _arrivals_s(reference), _arrivals_s(other)))
    else:
        pairs.append(("s of duration", reference.figure("duration_s"), other.figure("duration_s")))
    found = [
        f"{ours:,.6g} against {theirs:,.6g} {what}"
        for what, ours, theirs in pairs
        if math.isfinite(ours + theirs) and abs(theirs - ours) > TOLERANCE * abs(ours)
    ]
    return [f"not the same workload? {', '.join(found)}"] if found else []


def _arrivals_s(run: Run) -> float:
    return math.nan if run.requests is None else run.requests.arrivals_s


@dataclass(frozen=True)
class Matched:
    """The requests of two runs, pair by pair in order of arrival."""

    reference: Requests
    other: Requests

    def errors_percent(self, latency: str) -> Floats:
        """(other - reference) / reference of each request, NaN where that does not exist."""
        ours: Floats = getattr(self.reference, f"{latency}_s")
        theirs: Floats = getattr(self.other, f"{latency}_s")
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(ours > 0, 100 * (theirs - ours) / ours, np.nan)


def matched(reference: Run, other: Run) -> Matched | None:
    """The pairs, if both files have each request and the lengths agree one by one."""
    ours, theirs = reference.requests, other.requests
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    alike = np.array_equal(ours.prompt_tokens, theirs.prompt_tokens) and np.array_equal(
        ours.output_tokens, theirs.output_tokens
    )
    return Matched(ours, theirs) if alike else None
