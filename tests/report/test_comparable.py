"""What sets policies apart before they are compared."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.report.comparable import keep_up, remarks, with_gpus
from simulator.report.headline import headline
from simulator.report.measures import ITL_P99, OUTPUT_RATE, column
from simulator.results import PolicyResult


def lasting(result: PolicyResult, arriving_s: float, **took_s: float) -> list[PolicyResult]:
    """The same requests, spread over `arriving_s`, done by each label after its time; the slower, the lower its ITL."""
    requests = result.requests.assign(  # type: ignore[attr-defined]
        arrival_s=np.linspace(0, arriving_s, len(result.requests))
    )
    kept = {"num_finished": 2, "num_requests": 2}
    return [
        replace(result, label=label, requests=requests, summary={
            **kept, "duration_s": took, "itl_p99_s": 1 / took, "output_tokens_per_s": 1e5 / took,
        })
        for label, took in took_s.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arriving_s", "took_s", "kept"),
    [
        (100, (90, 119, 121), [True, True, False]),
        (10, (50, 59, 61), [True, True, False]),
        (0, (50, 59, 61), [True, True, True]),
        (10, (50,), [True]),
    ],
)
def test_who_takes_a_fifth_longer_does_not_keep_up(
    arriving_s: float, took_s: tuple[float, ...], kept: list[bool], results: list[PolicyResult]
) -> None:
    """Than requests arrive; where that is too fast for all, than the fastest. At once, or alone, nobody is late."""
    runs = lasting(results[0], arriving_s, **dict(zip("abc", took_s, strict=False)))
    assert keep_up(runs) == kept


def test_other_work_is_no_lateness(results: list[PolicyResult], nothing: PolicyResult) -> None:
    """Who refused requests is not compared at all."""
    fast, slow = lasting(results[0], 100, a=100, b=500)
    assert keep_up([fast, replace(slow, requests=nothing.requests)]) == [True, True]


def test_who_does_not_keep_up_has_no_first_place(results: list[PolicyResult]) -> None:
    """Neither star nor sentence for the lowest ITL; in throughput it is still the last."""
    runs = lasting(results[0], 100, a=100, b=110, late=500)
    assert column(ITL_P99, runs)[2] == [False, True, False]
    assert column(OUTPUT_RATE, runs)[2] == [True, False, False]
    remark, rate, itl = headline(runs)
    assert remark == (
        "late (500 s) does not keep up and has no first place: requests arrive for 100 s, the fastest policy takes"
        " 100 s, and more than 1.2 times as long as both is late."
    )
    assert rate.endswith("above late (200 tokens/s, the last).")
    assert itl == "Of those that keep up, b has the lowest p99 ITL: 9.09 ms, 1.10x below a (10.0 ms)."


def test_those_that_keep_up_may_be_alike(results: list[PolicyResult]) -> None:
    """The sentence is of them alone."""
    assert headline(lasting(results[0], 100, a=100, b=101, late=500))[-1] == (
        "P99 ITL is about the same for all that keep up: 9.90 to 10.0 ms."
    ).replace("P99", "p99")


def test_gpus_are_named_where_they_differ(results: list[PolicyResult]) -> None:
    """In the labels of those beyond one, in a sentence, and in the comparison; nowhere where all have as many."""
    pair = lasting(results[0], 100, a=100, b=110)
    unlike = [replace(run, summary={**run.summary, "gpus": gpus}) for run, gpus in zip(pair, (1, 2), strict=True)]
    assert [run.label for run in with_gpus(unlike)] == ["a", "b (2 GPUs)"]
    assert remarks(unlike) == ["GPUs differ: b has 2, every other policy 1."]
    assert headline(unlike)[-1].startswith("b (2 GPUs) has the lowest p99 ITL")
    alike = [replace(run, summary={**run.summary, "gpus": 2}) for run in pair]
    assert [run.label for run in with_gpus(alike)] == ["a", "b"]
    assert remarks(alike) == []
