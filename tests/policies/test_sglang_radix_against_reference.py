"""SGLang's radix cache equals the slow one, in both loops, over random runs with prompts that begin alike."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies._sglang_radix import RadixLoop
from policies.sglang import Sglang
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.metrics.tokens import token_times_ns
from simulator.radix import Node
from simulator.runlog import STATUS_NAMES
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.corners import missed
from tests.policies.test_sglang_against_reference import EXAMPLES, PRICES, Workload, workloads
from tests.reference_sglang import Job
from tests.reference_sglang_radix import RadixJob, SglangRadixReference
from tests.workloads import answer, conversations

Run = tuple[Workload, list[str]]
"""With what the requests' tokens say."""


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """As without the cache, but the prompts are made of a few pieces; outputs can be found or not."""
    rows, options, pages, page = draw(workloads())
    texts = draw(conversations([(at, prompt, output, 0) for at, prompt, output, *_ in rows]))
    rows = [(at, len(text), *others) for text, (at, _, *others) in zip(texts, rows, strict=True)]
    if draw(st.booleans()):
        texts = [text + answer(index, row[2]) for index, (text, row) in enumerate(zip(texts, rows, strict=True))]
    options |= {"schedule_policy": draw(st.sampled_from(["fcfs", "lpm", "lpm"]))}
    most = max(-(-(prompt + declared) // page) for _, prompt, _, declared, _ in rows)
    return (rows, options, max(pages, most + 2), page), texts


def slow(run: Run) -> tuple[SglangRadixReference, dict[str, Any], bool]:
    (rows, options, pages, page), texts = run
    jobs: list[Job] = [
        RadixJob(index, *row, text=text) for index, (row, text) in enumerate(zip(rows, texts, strict=True))
    ]
    reference = SglangRadixReference(jobs, options, pages, page, PRICES)
    ended = reference.run(20000)
    fates = [(job.times, job.status, job.retracted, job.cached) for job in jobs if isinstance(job, RadixJob)]
    return reference, {"fates": fates, "tree": reference.pool.tree.by_age(), "free": reference.pool.free}, ended


def fast(run: Run) -> dict[str, Any]:
    (rows, options, pages, page), texts = run
    requests = []
    for index, ((arrival, prompt, output, declared, ignores), text) in enumerate(zip(rows, texts, strict=True)):
        requests.append(Request(index, arrival, prompt, output))
        requests[-1].max_tokens, requests[-1].ignore_eos = declared, ignores
        requests[-1].keys = [text[:end] for end in range(page, len(text) + 1, page)]
    step, token, context = PRICES
    costs = LinearCosts(fixed_ns=step, per_token_ns=token, per_context_token_ns=context)
    loops: list[RadixLoop] = []

    def watch(scheduler: Scheduler) -> None:
        assert isinstance(scheduler.planner, RadixLoop)
        loops[:] = [scheduler.planner]

    policy = Sglang(**options, page_size=page)
    clock = GpuTimes(costs)
    log = simulate(iter(requests), policy, clock, block_size=page, num_blocks=pages, prefixes=True, on_step=watch)
    names = ("request", "status", "preemptions", "cached")
    columns = (log.requests[name].tolist() for name in names)
    fates = {index: (STATUS_NAMES[status], *counts) for index, status, *counts in zip(*columns, strict=True)}
    times = token_times_ns(log, len(rows))
    tree = by_age(loops[0].cache.tree.root, page) if loops else []
    free = loops[0].cache.free * page if loops else pages * page
    return {"fates": [(each, *fates[index]) for index, each in enumerate(times)], "tree": tree, "free": free}


def by_age(root: Node, page: int) -> list[tuple[int, int, int]]:
    """As the slow tree says it."""
    nodes, waiting = list[Node](), [*root.children.values()]
    while waiting:
        nodes.append(waiting.pop())
        waiting += nodes[-1].children.values()
    nodes.sort(key=lambda node: node.stamp)
    return [(node.start * page, node.end * page, node.locks) for node in nodes]


@settings(max_examples=EXAMPLES, deadline=None)
@given(runs())
def test_equals_the_reference(run: Run) -> None:
    """The time of every token, retractions, what was found cached, and in the end the tree with the age of its runs."""
    _, outcome, ended = slow(run)
    assume(ended)
    assert fast(run) == outcome


CORNERS = {
    "hit",
    "hit beyond the prompt",
    "hit when retracted before",
    "evicts for prompts",
    "overtakes",
    "waits for one like it",
    "retracts",
    "drops a token",
    "decodes in vain",
    "entered with a token in vain",
    "no token",
}


def test_random_runs_reach_every_corner() -> None:
    """Each thing that the cache does happens in some of them."""
    assert missed(runs(), lambda run: slow(run)[0].reached, CORNERS) == set()
