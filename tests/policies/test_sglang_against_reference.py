"""SGLang's policy equals the slow description of its loops: the same time of every token, the same retractions."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.sglang import Sglang
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.metrics.tokens import token_times_ns
from simulator.runlog import STATUS_NAMES
from simulator.step_times import GpuTimes
from tests.corners import missed
from tests.reference_sglang import Job, SglangReference

EXAMPLES = 4 * settings().max_examples
"""400; with --hypothesis-profile=thorough 5,000."""
PRICES = (1000, 10, 1)

Rows = list[tuple[int, int, int, int, bool]]
"""Arrival in ns, prompt, output, declared limit, whether end-of-sequence tokens are ignored."""
Workload = tuple[Rows, dict[str, Any], int, int]
"""With the options, pages and the tokens of one."""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """From a starved to an ample pool; of every size that decides something, values that are reached."""
    page = draw(st.sampled_from([1, 1, 4, 16]))
    crowded = draw(st.booleans())  # many at once of whom too little is expected: they are retracted
    count = draw(st.integers(5 if crowded else 1, 14))
    now, rows = 0, []
    longest, outputs = draw(st.sampled_from([10, 70, 200])), draw(st.sampled_from([80, 150] if crowded else [3, 40]))
    ignoring = draw(st.sampled_from([[False], [True, False]] if crowded else [[True], [False], [True, False]]))
    gaps = [0, 0, 1, 1010] if crowded else [0, 0, 1, 700, 1000, 1010, 3000, 40000]
    for _ in range(count):
        now += draw(st.sampled_from(gaps))
        output = draw(st.integers(1, outputs))
        ignores = draw(st.sampled_from(ignoring))
        declared = output if ignores else output + draw(st.sampled_from([0, 0, 1, 30, 200]))
        rows.append((now, draw(st.integers(1, longest)), output, declared, ignores))
    options = {
        "chunked_prefill_size": draw(st.sampled_from([-1, 16, 32, 64, 8192])),
        "max_prefill_tokens": draw(st.sampled_from([20, 100, 16384])),
        "max_running_requests": 100 if crowded else draw(st.sampled_from([1, 2, 4, 8, 100])),
        "schedule_conservativeness": draw(st.sampled_from([0.1, 0.3] if crowded else [0.1, 1.0, 2.0])),
        "enable_mixed_chunk": draw(st.booleans()),
        "disable_overlap_schedule": draw(st.booleans()),
        "context_length": draw(st.sampled_from([None, None, 120])),
    }
    most = max(-(-(prompt + declared) // page) for _, prompt, _, declared, _ in rows)
    roomy = st.integers(max(2, most // 2), 2 * most + 8) | st.integers(most, most * count + 8)
    pages = draw(st.integers(most + 3, most + most // 2 + 6) if crowded else roomy)
    return rows, options, pages, page


def slow(workload: Workload, most_passes: int = 20000) -> tuple[SglangReference, list[Job], bool]:
    rows, options, pages, page = workload
    jobs = [Job(index, *row) for index, row in enumerate(rows)]
    reference = SglangReference(jobs, options, pages, page, PRICES)
    return reference, jobs, reference.run(most_passes)


def fast(workload: Workload) -> list[tuple[list[int], str, int]]:
    rows, options, pages, page = workload
    requests = []
    for index, (arrival, prompt, output, declared, ignores) in enumerate(rows):
        requests.append(Request(index, arrival, prompt, output))
        requests[-1].max_tokens, requests[-1].ignore_eos = declared, ignores
    step, token, context = PRICES
    costs = LinearCosts(fixed_ns=step, per_token_ns=token, per_context_token_ns=context)
    policy = Sglang(**options, disable_radix_cache=True, page_size=page)
    log = simulate(iter(requests), policy, GpuTimes(costs), block_size=page, num_blocks=pages)
    columns = (log.requests[name].tolist() for name in ("request", "status", "preemptions"))
    fates = {index: (STATUS_NAMES[status], preemptions) for index, status, preemptions in zip(*columns, strict=True)}
    return [(times, *fates[index]) for index, times in enumerate(token_times_ns(log, len(rows)))]


@settings(max_examples=EXAMPLES, deadline=None)
@given(workloads())
def test_equals_the_reference(workload: Workload) -> None:
    """Random requests, limits, options, page sizes and pools, in both loops."""
    _, jobs, ended = slow(workload)
    assume(ended)
    assert fast(workload) == [(job.times, job.status, job.retracted) for job in jobs]


CORNERS = {
    "rejected",
    "no slot",
    "no token",
    "input used up",
    "no whole page or a second cut",
    "before the last",
    "refused by the order of endings",
    "retracts",
    "drops a token",
    "decodes in vain",
    "waits for those who finish",
}


def test_random_runs_reach_every_corner() -> None:
    """What the two are compared in is not a walk in the middle of the road."""
    assert missed(workloads(), lambda workload: slow(workload)[0].reached, CORNERS) == set()
