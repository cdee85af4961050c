"""Step times against prices: which steps of a log have a time, and the errors by kind of batch."""

import gzip
from typing import ClassVar

import numpy as np
import pytest

from simulator.compare.drift import composition_drift, logged_composition, simulated_composition
from simulator.compare.steps import KINDS, StepPrices, errors_by_kind, priced_steps, worst
from simulator.costs import LinearCosts
from simulator.errors import InputError
from simulator.step_log_file import read_step_log
from simulator.step_log_rows import COLUMNS

TWO_SECONDS = StepPrices(LinearCosts(fixed_ns=2 * 10**9))
SYNC = [
    "0,0,1,5,6,1,0,0,0,0,0:0:8,",  # prefill only: 4 s
    "1,6,7,9,10,0,1,1,9,9,1:4:20,",  # mixed: 2 s
    "2,10,11,12,13,0,2,2,20,11,,",  # decodes: 1 s
    "3,13,14,14.5,15,0,2,0,0,0,,",  # nothing ran
    "4,15,16,19,20,0,2,2,22,12,2:0:600,",  # mixed and large: 3 s
]
ASYNC = [
    "0,0,1,10,11,1,0,1,5,5,,",  # the first: nothing before it
    "1,2,3,12,13,0,1,1,6,6,,",  # 2 s after the one before
    "2,11,11.5,15,15.5,0,1,1,7,7,,",  # 3 s, but a prefill comes next, which delays its collection
    "3,13,13.5,25,25.5,0,1,1,8,8,1:0:9,",  # a prefill
    "4,16,16.5,27,27.5,0,1,1,9,9,,",  # after a prefill
    "5,26,26.5,31,31.5,0,1,1,10,10,,",  # 4 s
    "6,40,41,45,46,0,1,1,11,11,,",  # scheduled after the output before: the engine was idle
    "7,42,43,47,48,0,1,1,12,12,,",  # 2 s
    "8,46,46.5,48,49,0,1,1,13,13,,",  # the last: what follows is not known
]


@pytest.fixture
def log(tmp_path):
    """The log of these rows."""

    def read(rows):
        path = tmp_path / "steps.csv.gz"
        path.write_bytes(gzip.compress("\n".join([",".join(COLUMNS), *rows, ""]).encode()))
        return read_step_log(path)

    return read


def test_a_synchronous_step_takes_from_scheduling_to_output(log):
    """Steps that run nothing are left out; each of the others has its kind."""
    steps = priced_steps(log(SYNC), TWO_SECONDS)
    assert not steps.asynchronous
    assert steps.log.step[steps.rows].tolist() == [0, 1, 2, 4]
    assert steps.measured_s.tolist() == [4, 2, 1, 3]
    assert [KINDS[kind] for kind in steps.kind] == [
        "prefill only",
        "mixed, up to 512 tokens",
        "decode only",
        "mixed, above 512 tokens",
    ]


def test_a_pipelined_step_takes_from_output_to_output(log):
    """Only between decode-only steps, and only where the engine was not idle."""
    steps = priced_steps(log(ASYNC), TWO_SECONDS)
    assert steps.asynchronous
    assert steps.log.step[steps.rows].tolist() == [1, 5, 7]
    assert steps.measured_s.tolist() == [2, 4, 2]


def test_a_price_sees_the_whole_composition(log):
    """Decodes with sum and largest context, chunks without their request."""

    class Seen(LinearCosts):
        steps: ClassVar[list] = []

        def step_ns(self, decodes, decode_context, longest, chunks):
            self.steps.append((decodes, decode_context, longest, chunks))
            return super().step_ns(decodes, decode_context, longest, chunks)

    priced_steps(log(SYNC[:2]), StepPrices(Seen(fixed_ns=10**9)))
    assert Seen.steps == [(0, 0, 0, [(0, 8)]), (1, 9, 9, [(4, 20)])]


def test_errors_are_given_by_kind_and_of_all(log):
    """Signed and absolute per cent of the measured time, and the sums."""
    rows = {row.kind: row for row in errors_by_kind(priced_steps(log(SYNC), TWO_SECONDS))}
    assert list(rows) == [*KINDS, "all"]
    assert rows["decode only"].median_percent == pytest.approx(100)
    assert rows["prefill only"].median_percent == pytest.approx(-50)
    assert rows["prefill only"].median_absolute_percent == pytest.approx(50)
    assert rows["all"].count == 4
    assert rows["all"].median_percent == pytest.approx((0 - 100 / 3) / 2)
    assert rows["all"].p95_absolute_percent == pytest.approx(np.percentile([50, 0, 100, 100 / 3], 95))
    assert rows["all"].sum_percent == pytest.approx(-20)  # 8 s priced, 10 s measured


def test_the_worst_steps_are_those_off_by_most_seconds(log):
    """Not by most per cent: step 0 is off by 2 s, steps 2 and 4 by 1 s."""
    steps = priced_steps(log(SYNC), TWO_SECONDS)
    assert steps.log.step[steps.rows[worst(steps, 3)]].tolist() == [0, 2, 4]


def test_compositions_are_compared_without_empty_steps(log, tmp_path):
    """A log against iterations: number, share with prefills, decodes and tokens a step."""
    path = tmp_path / "iterations.csv"
    path.write_text("iteration,num_decodes,num_prefills,prefill_tokens\n0,0,1,8\n1,4,0,0\n", encoding="utf-8")
    rows = composition_drift(logged_composition(log(SYNC)), simulated_composition(path))
    found = {row.name: (row.reference, row.other) for row in rows}
    assert found["steps"] == (4, 2)
    assert found["steps with prefills, %"] == (75, 50)
    assert found["decodes a step, mean"] == (1.25, 2)
    assert found["tokens a step, p50"] == ((8 + 21) / 2, 6)
    assert rows[0].error_percent == -50


def test_iterations_that_cannot_be_read_are_named(tmp_path):
    """The file, in one line."""
    path = tmp_path / "iterations.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"iterations\.csv: cannot be read: .*num_decodes"):
        simulated_composition(path)
