"""What sets policies apart before they are compared: other work, too little speed for the traffic, more GPUs."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.report.wording import duration, listed
from simulator.results import PolicyResult, floats

SLACK = 1.2


def served_alike(results: Sequence[PolicyResult]) -> bool:
    """Whether the policies finished the same requests with the same outputs, so that their latencies compare."""
    first = results[0].requests
    return all(
        np.array_equal(result.requests["status"], first["status"])
        and np.array_equal(result.requests["generated_tokens"], first["generated_tokens"])
        for result in results[1:]
    )


def keep_up(results: Sequence[PolicyResult]) -> list[bool]:
    """Whether each policy is done within SLACK times both the time in which requests arrive and the fastest's.

    Who is not lets requests wait and computes few at a time, each of them fast. All keep up where all requests come at
    once, or where the policies did not serve the same ones.
    """
    if len(results) < 2 or not arriving_s(results) or not served_alike(results):
        return [True] * len(results)
    return [not took > SLACK * needed_s(results) for took in _durations(results)]


def needed_s(results: Sequence[PolicyResult]) -> float:
    """The longer of the time in which requests arrive and the fastest policy's, in seconds."""
    return max(arriving_s(results), _fastest_s(results))


def arriving_s(results: Sequence[PolicyResult]) -> float:
    """From the first arrival to the last, in seconds; 0 of no request."""
    return max((float(np.ptp(floats(each.requests, "arrival_s"))) for each in results if len(each.requests)), default=0)


def _durations(results: Sequence[PolicyResult]) -> list[float]:
    return [float(result.summary.get("duration_s", math.nan)) for result in results]


def _fastest_s(results: Sequence[PolicyResult]) -> float:
    return min((took for took in _durations(results) if math.isfinite(took)), default=0.0)


def gpus(result: PolicyResult) -> int:
    """All that serve."""
    return int(result.summary.get("gpus", 1))


def unlike_gpus(results: Sequence[PolicyResult]) -> bool:
    """Whether some policies have more GPUs than others."""
    return len({gpus(result) for result in results}) > 1


def with_gpus(results: Sequence[PolicyResult]) -> list[PolicyResult]:
    """The results, where GPUs differ with those beyond one in their labels: `1P+1D (2 GPUs)`."""
    named = {id(result): f"{result.label} ({gpus(result)} GPUs)" for result in results if gpus(result) > 1}
    return [
        replace(result, label=named[id(result)]) if id(result) in named and unlike_gpus(results) else result
        for result in results
    ]


def remarks(results: Sequence[PolicyResult]) -> list[str]:
    """A sentence on GPUs that differ, and one on who does not keep up."""
    return [*_of_gpus(results), *_of_the_late(results)]


def _of_gpus(results: Sequence[PolicyResult]) -> list[str]:
    if not unlike_gpus(results):
        return []
    [(usual, _)] = Counter(map(gpus, results)).most_common(1)
    others = listed([f"{result.label} has {gpus(result)}" for result in results if gpus(result) != usual])
    return [f"GPUs differ: {others}, every other policy {usual}."]


def _of_the_late(results: Sequence[PolicyResult]) -> list[str]:
    late = [result for result, kept in zip(results, keep_up(results), strict=True) if not kept]
    if not late:
        return []
    who = listed([f"{result.label} ({duration(result.summary['duration_s'])})" for result in late])
    do, have = ("does", "has") if len(late) == 1 else ("do", "have")
    return [
        f"{who} {do} not keep up and {have} no first place: requests arrive for {duration(arriving_s(results))}, the"
        f" fastest policy takes {duration(_fastest_s(results))}, and more than {SLACK:g} times as long as both is late."
    ]
