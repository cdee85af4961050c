"""Which policy is best, by how much, and how it is said."""

import math
from dataclasses import replace
from typing import Any

import pytest

from simulator.report.headline import headline, notes, times
from simulator.report.measures import ITL_P99, KV_PEAK, OUTPUT_RATE, PREEMPTIONS, column, winners
from simulator.report.wording import duration, shorten, significant
from simulator.results import PolicyResult


def with_summary(result: PolicyResult, label: str, **values: Any) -> PolicyResult:
    """`result` under another label; every measure of the headline is NaN but for `values`."""
    kept = {"num_finished": 2, "num_requests": 2}
    return replace(result, label=label, summary={**kept, **values})


def test_two_policies_are_compared_by_their_ratio(results: list[PolicyResult]) -> None:
    """104 ms is 2.3 times 45 ms."""
    pair = [
        with_summary(results[0], "orca", itl_p99_s=0.104),
        with_summary(results[0], "vllm", itl_p99_s=0.045),
    ]
    assert headline(pair) == ["vllm has the lowest p99 ITL: 45.0 ms, 2.3x below orca (104 ms)."]


def test_of_more_the_next_and_the_last_are_named(results: list[PolicyResult]) -> None:
    """More throughput is better: above, and the order turns round."""
    rates = {"a": 1000.0, "b": 1500.0, "c": 750.0, "d": 900.0}
    runs = [with_summary(results[0], label, output_tokens_per_s=rate) for label, rate in rates.items()]
    assert headline(runs) == [
        "b has the highest output throughput: 1,500 tokens/s, 1.50x above a (1,000 tokens/s, the next) "
        "and 2.0x above c (750 tokens/s, the last)."
    ]


def test_less_than_two_per_cent_is_about_the_same(results: list[PolicyResult]) -> None:
    """No winner is named where a second run could turn the order."""
    runs = [with_summary(results[0], label, itl_p50_s=value) for label, value in (("a", 0.02), ("b", 0.0203))]
    assert headline(runs) == ["Median ITL is about the same for all policies: 20.0 to 20.3 ms."]


def test_ties_win_together_and_the_runner_up_may_be_near(results: list[PolicyResult]) -> None:
    """Half a per cent is a tie; values that read differently are named from least to greatest."""
    values = {"a": 0.0100001, "b": 0.01, "c": 0.0101, "d": 0.05}
    runs = [with_summary(results[0], label, itl_p99_s=value) for label, value in values.items()]
    assert headline(runs) == [
        "b and a have the lowest p99 ITL: 10.0 ms, about the same as c (10.1 ms, the next) "
        "and 5.0x below d (50.0 ms, the last)."
    ]
    rates = {"a": 3848.6, "b": 3851.5, "c": 2326.0}
    runs = [with_summary(results[0], label, output_tokens_per_s=value) for label, value in rates.items()]
    assert headline(runs) == [
        "b and a have the highest output throughput: 3,849 to 3,852 tokens/s, 1.66x above c (2,326 tokens/s)."
    ]


def test_nobody_wins_over_other_work(results: list[PolicyResult], nothing: PolicyResult) -> None:
    """A policy that refuses requests looks fast: one sentence says so, and no star is given."""
    (line,) = headline([results[0], nothing])
    assert line.startswith("The policies did not serve the same requests")
    assert "nothing 0 of" in line
    assert column(OUTPUT_RATE, [*results, nothing])[2] == [False] * (len(results) + 1)


def test_bubbles_of_pipelines_are_compared(results: list[PolicyResult], staged: list[PolicyResult]) -> None:
    """By their share of the stages' time; runs without stages are not."""
    runs = [with_summary(staged[0], label, bubble_fraction=share) for label, share in (("a", 0.448), ("b", 0.14))]
    assert headline(runs) == ["b has the lowest share of bubbles: 14.0%, 3.2x below a (44.8%)."]
    assert headline([with_summary(results[0], label, bubble_fraction=0.1) for label in "ab"]) == []


def test_zero_has_no_ratio(results: list[PolicyResult]) -> None:
    """0 ms is below 5 ms, by no factor."""
    runs = [with_summary(results[0], label, ttft_p50_s=value) for label, value in (("a", 0.0), ("b", 0.005))]
    assert headline(runs) == ["a has the lowest median TTFT: 0 ms, below b (5.00 ms)."]


def test_the_best_is_the_one_that_half_a_per_cent_tells() -> None:
    """Ties, missing values, lone values and neutral measures."""
    assert winners(ITL_P99, [0.2, 0.1, math.nan]) == [False, True, False]
    assert winners(OUTPUT_RATE, [1269.6, 1270.2, 800.0]) == [True, True, False]
    assert winners(OUTPUT_RATE, [1269.6, 1270.2]) == [False, False]
    assert winners(PREEMPTIONS, [100001, 100000]) == [False, False]
    assert winners(PREEMPTIONS, [1, 0]) == [False, True]
    assert winners(ITL_P99, [0.1]) == [False]
    assert winners(ITL_P99, [0.1, math.nan]) == [False, False]
    assert winners(KV_PEAK, [0.1, 0.2]) == [False, False]


@pytest.mark.parametrize("scale", [1.0, 18.24 / 3848.64, 0.001, 26.0])
def test_ties_do_not_depend_on_the_digits_shown(scale: float) -> None:
    """Tokens and requests a second of the same runs have the same marks."""
    rates = [2325.85, 3848.64, 3851.54, 3850.34, 3675.74, 3844.95, 3849.16]
    best = [False, True, True, True, False, True, True]
    assert winners(OUTPUT_RATE, [scale * rate for rate in rates]) == best
    assert winners(ITL_P99, [1 / (scale * rate) for rate in rates]) == best


def test_a_column_has_one_unit(results: list[PolicyResult]) -> None:
    """Milliseconds until a value reaches a second."""
    fast, slow = (with_summary(results[0], "x", itl_p99_s=value) for value in (0.0451, 1.5))
    assert column(ITL_P99, [fast]) == ("ms", ["45.1"], [False])
    assert column(ITL_P99, [fast, slow]) == ("s", ["0.0451", "1.50"], [True, False])


def test_notes_say_what_did_not_finish_and_repeat_nothing(results: list[PolicyResult], nothing: PolicyResult) -> None:
    """A note that all runs share is said once, without labels."""
    noted = [replace(result, notes=("drained",)) for result in (*results[:2], nothing)]
    noted[1] = replace(noted[1], notes=("drained", "no prefix cache"))
    assert notes(noted) == [
        "nothing: 60 of 60 requests did not finish (60 rejected); compare with care",
        "drained",
        "sarathi: no prefix cache",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (9.996, "10.0"),
        (45.64, "45.6"),
        (999.6, "1,000"),
        (1269.6, "1,270"),
        (0, "0"),
        (math.nan, "-"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    """Rounding comes before the digits are counted."""
    assert significant(value) == text


def test_durations_and_factors() -> None:
    """The unit suits the size; a factor has no more digits than it deserves."""
    assert [duration(value) for value in (0.0452, 0.9996, 1.84)] == ["45.2 ms", "1.00 s", "1.84 s"]
    assert [times(value) for value in (1.081, 1.999, 2.31, 9.97)] == ["1.08x", "2.0x", "2.3x", "10x"]


def test_long_names_lose_their_middle() -> None:
    """Both ends of a name tell it from others."""
    assert shorten("vllm-with-budget-2048", 11) == "vllm-…-2048"
    assert shorten("two\n lines", 40) == "two lines"
