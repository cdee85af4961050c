"""Random small workloads and options that bring the engines into every corner, and the two engines side by side."""

from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st

from policies.orca import Orca
from policies.sarathi import Sarathi
from policies.simple_chunking import SimpleChunking
from policies.static import Static
from policies.vllm import Vllm
from policies.vllm_v0 import VllmV0
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.metrics.tokens import token_times_ns
from simulator.runlog import STATUS_NAMES, LoggedRun
from simulator.scheduler import Scheduler
from tests.reference import Job, Reference
from tests.reference_sarathi import SarathiReference

COSTS = LinearCosts(fixed_ns=1000, per_token_ns=10, per_context_token_ns=1)
POLICIES = {
    "vllm": Vllm,
    "sarathi": Sarathi,
    "orca": Orca,
    "static": Static,
    "simple_chunking": SimpleChunking,
    "vllm_v0": VllmV0,
}


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(arrival_ns, prompt, output, priority), arrivals sorted; bursts, ties and idle gaps included."""
    count = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 700, 1010, 3000, 40000]), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(1, 70), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    urgency = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    arrivals = [sum(gaps[: i + 1]) for i in range(count)]
    return list(zip(arrivals, prompts, outputs, urgency, strict=True))


@st.composite
def vllm_options(draw: st.DrawFn) -> dict[str, Any]:
    sequences = draw(st.integers(1, 8))
    length = draw(st.sampled_from([30, 64, 120, 4096]))
    chunked = draw(st.booleans())
    budget = draw(st.integers(sequences, 96)) if chunked else max(length, sequences)
    return {
        "max_num_batched_tokens": budget,
        "max_num_seqs": sequences,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 7, 20])),
        "enable_chunked_prefill": chunked,
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "enable_prefix_caching": False,
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "max_model_len": length,
    }


@st.composite
def sarathi_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "chunk_size": draw(st.integers(1, 80)),
        "max_num_seqs": draw(st.integers(1, 8)),
        "tile_size": draw(st.sampled_from([0, 4, 16, 32])),
        "max_prefills_per_batch": draw(st.integers(0, 2)),
    }


@st.composite
def orca_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "max_batch_size": draw(st.integers(1, 8)),
        "reservation": draw(st.sampled_from(["request", "max_model_len"])),
        "max_model_len": draw(st.sampled_from([60, 110])),
        "max_prefills_per_batch": draw(st.integers(0, 2)),
    }


@st.composite
def static_options(draw: st.DrawFn) -> dict[str, Any]:
    return {"max_batch_size": draw(st.integers(1, 8)), "max_model_len": draw(st.sampled_from([60, 110]))}


@st.composite
def simple_chunking_options(draw: st.DrawFn) -> dict[str, Any]:
    return {"chunk_size": draw(st.integers(1, 80)), "max_num_seqs": draw(st.integers(1, 8))}


@st.composite
def vllm_v0_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.integers(20, 160)),
        "max_model_len": draw(st.sampled_from([60, 120, 4096])),
    }


OPTIONS = {
    "vllm": vllm_options(),
    "sarathi": sarathi_options(),
    "orca": orca_options(),
    "static": static_options(),
    "simple_chunking": simple_chunking_options(),
    "vllm_v0": vllm_v0_options(),
}


def run_fast(
    policy: str,
    options: dict[str, Any],
    workload: list[tuple[int, int, int, int]],
    block_size: int,
    blocks: int,
) -> LoggedRun:
    """The package's engine."""
    requests = (Request(index, *facts) for index, facts in enumerate(workload))
    policy_object = POLICIES[policy](**options)
    return simulate(
        requests, policy_object, COSTS, block_size=block_size, num_blocks=blocks, on_step=_refuse_endless_runs
    )


def _refuse_endless_runs(scheduler: Scheduler) -> None:
    assert scheduler.iterations < 100_000, "the run makes no progress"


def run_slow(
    policy: str,
    options: dict[str, Any],
    workload: list[tuple[int, int, int, int]],
    block_size: int,
    blocks: int,
) -> tuple[Reference, list[Job]]:
    """The reference engine."""
    options = asdict(POLICIES[policy](**options))
    kind = Reference if hasattr(Reference, policy) else SarathiReference
    engine = kind(policy, options, COSTS.step_ns, block_size, blocks)
    jobs = [Job(index, *facts) for index, facts in enumerate(workload)]
    engine.run(jobs)
    return engine, jobs


def fast_outcome(log: LoggedRun, requests: int) -> dict[str, Any]:
    """What both engines must agree on, from the fast one."""
    status, preemptions = [""] * requests, [0] * requests
    for index, code, count in zip(
        *(log.requests[name].tolist() for name in ("request", "status", "preemptions")), strict=True
    ):
        status[index], preemptions[index] = STATUS_NAMES[code], count
    names = ("start_ns", "end_ns", "num_decodes", "prefill_tokens", "free_blocks", "running")
    return {
        "times": token_times_ns(log, requests),
        "status": status,
        "preemptions": preemptions,
        "steps": list(zip(*(log.iterations[name].tolist() for name in names), strict=True)),
    }


def slow_outcome(engine: Reference, jobs: list[Job]) -> dict[str, Any]:
    """The same from the reference engine."""
    return {
        "times": [job.times for job in jobs],
        "status": [job.status for job in jobs],
        "preemptions": [job.preemptions for job in jobs],
        "steps": engine.steps,
    }
