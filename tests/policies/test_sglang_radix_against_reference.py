"""SGLang's radix cache against the slow engine, over random workloads with prompts that begin alike."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies._sglang_radix import RadixLoop
from policies.sglang import Sglang
from simulator.metrics.tokens import token_times_ns
from simulator.radix import Node
from simulator.runlog import ITERATION_COLUMNS, STATUS_NAMES
from simulator.scheduler import Scheduler
from tests.reference import Job
from tests.reference_sglang_radix import SglangRadixReference
from tests.workloads import COSTS, EVEN_COSTS, Case, answer, conversations, pools, run_fast, workloads


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Pools from starved to ample, chunks that cut prompts or not, and outputs that others know or not."""
    page = draw(st.sampled_from([1, 1, 4, 16]))
    workload = draw(workloads())
    texts = draw(conversations(workload))
    workload = [(at, len(text), out, urgency) for text, (at, _, out, urgency) in zip(texts, workload, strict=True)]
    if draw(st.booleans()):
        texts = [text + answer(index, workload[index][2]) for index, text in enumerate(texts)]
    chunks = draw(st.sampled_from([-1, 1, 2, 4, 100]))
    options = {
        "chunked_prefill_size": chunks * 16 if chunks > 0 else chunks,
        "max_prefill_tokens": draw(st.sampled_from([16, 64, 1000])),
        "max_running_requests": draw(st.sampled_from([1, 2, 4, 14, 14])),
        "schedule_policy": draw(st.sampled_from(["fcfs", "lpm", "lpm"])),
        "schedule_conservativeness": draw(st.sampled_from([0.01, 0.1, 0.1, 1.0])),
        "enable_mixed_chunk": page == 1 and draw(st.booleans()),
        "ignore_eos": draw(st.sampled_from([False, False, True])),
        "disable_overlap_schedule": True,
        "page_size": page,
    }
    blocks = draw(pools([prompt + output for _, prompt, output, _ in workload], page, False)) + 4
    return Case("sglang", options, workload, page, blocks, texts, draw(st.sampled_from([COSTS, EVEN_COSTS])))


def by_age(root: Node, page: int) -> list[tuple[int, int, int]]:
    """As the slow tree says it."""
    nodes, waiting = list[Node](), [*root.children.values()]
    while waiting:
        nodes.append(waiting.pop())
        waiting += nodes[-1].children.values()
    nodes.sort(key=lambda node: node.stamp)
    return [(node.start * page, node.end * page, node.locks) for node in nodes]


def fast(case: Case) -> dict[str, Any]:
    pictures: list[object] = []

    def watch(scheduler: Scheduler) -> None:
        assert isinstance(scheduler.planner, RadixLoop)
        pictures.append(by_age(scheduler.planner.cache.tree.root, case.block_size))

    log = run_fast(case, watch, Sglang(**case.options))
    names = ("request", "status", "preemptions", "cached")
    rows = sorted(zip(*(log.requests[name].tolist() for name in names), strict=True))
    return {
        "times": token_times_ns(log, len(case.workload)),
        "requests": [(STATUS_NAMES[status], *counts) for _, status, *counts in rows],
        "steps": list(zip(*(log.iterations[name].tolist() for name in ITERATION_COLUMNS), strict=True)),
        "last picture": pictures[-1:],
    }


def slow(case: Case) -> tuple[dict[str, Any], Counter[str]]:
    options = asdict(Sglang(**case.options))
    engine = SglangRadixReference(options, case.costs.step_ns, case.block_size, case.blocks)
    jobs = [Job(index, *facts, text) for index, (facts, text) in enumerate(zip(case.workload, case.texts, strict=True))]
    engine.run(jobs)
    outcome = {
        "times": [job.times for job in jobs],
        "requests": [(job.status, job.preemptions, job.cached) for job in jobs],
        "steps": engine.steps,
        "last picture": engine.pictures[-1:],
    }
    return outcome, engine.reached


@given(cases())
@settings(max_examples=300)
def test_every_step_is_the_slow_engines(case: Case) -> None:
    """Times of all tokens, every column of every step, what was found cached, and the tree in the end."""
    assert fast(case) == slow(case)[0]
