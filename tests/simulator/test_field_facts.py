"""What the field says of its schedulers, on one seeded load: who stalls decodes, who bounds the stall, who queues.

The load: 300 requests at 8 a second, Poisson, with prompts of up to 4,000 tokens and up to 200 of output, priced by
the bundled table of an H200 and llama-3.1-8b. There the GPU works nearly all the time and yet who is batched
continuously keeps up (`test_the_load_is_a_fair_one`): with idle phases few requests would meet, and in overload the
queue would say more than the scheduler. All have the same limits where they have them; memory is ample.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.core import Request
from simulator.engine import simulate
from simulator.metrics.tokens import token_times_ns
from simulator.named_tables import find_table
from simulator.plugins import make_policy
from simulator.policy import PolicyBase, Surroundings
from simulator.step_times import GpuTimes
from simulator.table_costs import TableCosts
from simulator.trace import Floats

H200 = Surroundings("NVIDIA H200", 141 * 2**30, 131072)
REQUESTS, RATE, PROMPT, OUTPUT = 300, 8.0, 4000, 200
BUDGET = {"max_num_batched_tokens": 1024, "max_num_seqs": 64}
CHUNKS = {"chunked_prefill_size": 1024, "max_running_requests": 64, "disable_overlap_schedule": True}
TOKENS = {"max_num_tokens": 1024, "max_batch_size": 64}
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"policy": "static", "max_model_len": PROMPT + OUTPUT},
    "static-padded": {"policy": "static", "max_model_len": PROMPT + OUTPUT, "padding": True},
    "orca": {"policy": "orca"},
    "simple-chunking": {"policy": "simple-chunking", "chunk_size": 1024, "max_num_seqs": 64},
    "vllm-v0": {"policy": "vllm-v0", "max_num_seqs": 64},
    "vllm-v0-chunked": {"policy": "vllm-v0", "enable_chunked_prefill": True, **BUDGET},
    "sarathi": {"policy": "sarathi", "chunk_size": 1024, "max_num_seqs": 64},
    "sarathi-serve": {
        "policy": "sarathi",
        "chunk_size": 1024,
        "max_num_seqs": 64,
        "max_prefills_per_batch": 0,
        "tile_size": 0,
    },
    "vllm": {"policy": "vllm", **BUDGET},
    "sglang": {"policy": "sglang", **CHUNKS},
    "sglang-mixed": {"policy": "sglang", "enable_mixed_chunk": True, **CHUNKS},
    "tensorrt-llm": {"policy": "tensorrt-llm", "max_num_tokens": 8192, "max_batch_size": 64},
    "tensorrt-llm-chunked": {"policy": "tensorrt-llm", "enable_chunked_context": True, **TOKENS},
    "tensorrt-llm-static": {
        "policy": "tensorrt-llm",
        "capacity_scheduler_policy": "STATIC_BATCH",
        "enable_chunked_context": True,
        **TOKENS,
    },
    "tgi": {"policy": "tgi", "max_batch_prefill_tokens": 1024},
    "tgi-no-chunks": {"policy": "tgi", "prefill_chunking": False, "max_batch_prefill_tokens": 8192},
}
STATIC = ["static", "static-padded", "tensorrt-llm-static"]
CONTINUOUS = [label for label in POLICIES if label not in STATIC]
BOUNDED = ["vllm-v0-chunked", "sarathi", "sarathi-serve", "vllm", "tensorrt-llm-chunked"]
"""Chunks run beside all decodes, within a budget that the policy promises."""


@dataclass
class Run:
    """Seconds: gaps between tokens, all pooled; waits for the first step; how long the GPU worked, of how long."""

    policy: PolicyBase
    gaps: Floats
    queue: Floats
    working: float
    duration: float
    peak: int
    """Most requests that ran at once."""


@cache
def costs() -> TableCosts:
    return TableCosts(find_table("h200/llama-3.1-8b"))


def load() -> list[Request]:
    """The same for all."""
    random = np.random.default_rng(7)
    arrivals = np.cumsum(random.exponential(1e9 / RATE, REQUESTS)).astype(int).tolist()
    prompts, outputs = (random.integers(10, most + 1, REQUESTS).tolist() for most in (PROMPT, OUTPUT))
    return [Request(index, *facts) for index, facts in enumerate(zip(arrivals, prompts, outputs, strict=True))]


@cache
def run(label: str) -> Run:
    options = dict(POLICIES[label])
    policy = make_policy(options.pop("policy"), options, H200)
    assert isinstance(policy, PolicyBase)
    log = simulate(iter(load()), policy, GpuTimes(costs()), block_size=16, num_blocks=58_193)
    tokens = token_times_ns(log, REQUESTS)
    assert [len(times) for times in tokens] == [request.output_tokens for request in load()]
    starts, ends = log.iterations["start_ns"], log.iterations["end_ns"]
    admitted = dict(zip(log.requests["request"].tolist(), log.requests["first_scheduled"].tolist(), strict=True))
    waits = [starts[admitted[request.index]] - request.arrival_ns for request in load()]
    gaps = np.concatenate([np.diff(times) for times in tokens])
    working, peak = float((ends - starts).sum()), int(log.iterations["running"].max())
    return Run(policy, gaps / 1e9, np.array(waits) / 1e9, working / 1e9, float(ends[-1]) / 1e9, peak)


def full_budget_s(run: Run) -> float:
    """The dearest step within the budget of a policy: any number of decodes that ran at once, each as long as a request
    can be, and for the rest of the budget the last chunk of the longest prompt, or several."""
    promises, longest = run.policy.promises, PROMPT + OUTPUT
    assert promises.token_budget is not None
    prices = []
    for decodes in range(run.peak + 1):
        left = min(promises.token_budget - decodes, promises.prefill_budget or promises.token_budget)
        chunks = [(0, longest)] * (left // longest) + [(longest - left % longest, left % longest)]
        prices.append(costs().step_ns(decodes, decodes * longest, longest if decodes else 0, chunks))
    return max(prices) / 1e9


@pytest.mark.parametrize("label", CONTINUOUS)
def test_the_load_is_a_fair_one(label: str) -> None:
    """The GPU works nine tenths of the time, the last request ends soon after it came, and nobody waits long."""
    last_arrival = load()[-1].arrival_ns / 1e9
    assert run(label).working > 0.9 * run(label).duration
    assert run(label).duration < 1.05 * last_arrival
    assert run(label).queue.mean() < 0.05


@pytest.mark.parametrize("label", [label for label in CONTINUOUS if label not in ("vllm-v0", "sglang")])
def test_vllm_v0_has_the_worst_tail(label: str) -> None:
    """Decodes pause while it computes whole prompts, several steps of them in a row: no other's tail is as long."""
    worst, other = run("vllm-v0").gaps, run(label).gaps
    assert np.quantile(worst, 0.99) > np.quantile(other, 0.99)
    assert worst.max() > other.max()


def test_sglang_stalls_decodes_alike() -> None:
    """It too puts prompts first, if in chunks: pass after pass of them; only its longest gap is shorter."""
    worst, other = run("vllm-v0").gaps, run("sglang").gaps
    assert np.quantile(other, 0.99) == pytest.approx(np.quantile(worst, 0.99), rel=0.1)
    assert worst.max() > other.max()


@pytest.mark.parametrize("label", BOUNDED)
def test_chunks_bound_the_gaps(label: str) -> None:
    """No gap is longer than a step with a full budget takes, by the cost table; and the bound is not a loose one."""
    bound = full_budget_s(run(label))
    assert 0.8 * bound < run(label).gaps.max() <= bound


@pytest.mark.parametrize("label", BOUNDED)
def test_nothing_bounds_vllm_v0(label: str) -> None:
    """At the same load its longest gap is many full budgets long, and even its 99 % quantile is above the bound."""
    bound = full_budget_s(run(label))
    assert run("vllm-v0").gaps.max() > 5 * bound
    assert np.quantile(run("vllm-v0").gaps, 0.99) > bound


@pytest.mark.parametrize("label", CONTINUOUS)
@pytest.mark.parametrize("static", STATIC)
def test_static_batching_has_the_worst_queueing(static: str, label: str) -> None:
    """Who comes waits for a whole batch to end: longer by far on average and in the tail."""
    worst, other = run(static).queue, run(label).queue
    assert worst.mean() > 10 * other.mean()
    assert np.quantile(worst, 0.99) > 5 * np.quantile(other, 0.99)


def test_padding_costs() -> None:
    """A padded batch takes longer, so those that wait for it do too."""
    assert run("static-padded").queue.mean() > 1.2 * run("static").queue.mean()
    assert run("static-padded").working > run("static").working
