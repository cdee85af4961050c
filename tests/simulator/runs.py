"""Tiny runs with everything written out: which request got how many tokens in which step, and when its tokens came."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.core import Batch, Request, View
from simulator.costs import LinearCosts, StepCosts
from simulator.engine import simulate
from simulator.metrics.summary import policy_result
from simulator.metrics.tokens import token_times_ns
from simulator.policy import Policy
from simulator.results import PolicyResult, Table
from simulator.runlog import LoggedRun
from simulator.step_times import GpuTimes
from simulator.trace import Trace

SECOND = 10**9
ONE_SECOND_A_STEP = LinearCosts(fixed_ns=SECOND)


class Watched:
    """A policy that is asked in every step and whose decisions are spelled out: `steps[i]` maps request index to
    tokens, `victims[i]` lists who lost its memory, in that step."""

    def __init__(self, policy: Policy) -> None:
        self.policy: Any = policy
        self.steps: list[dict[int, int]] = []
        self.victims: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def start(self, view: View, *, contents: bool) -> "Watched":
        """A watch over the policy's planner, which writes what it sees to the same lists."""
        watch = Watched(self.policy.start(view, contents=contents))
        watch.steps, watch.victims = self.steps, self.victims
        return watch

    def plan(self, view: View) -> Batch | None:
        batch = self.policy.plan(view)
        if batch is not None:
            decodes = view.decoding_requests() if batch.decodes is None else batch.decodes
            tokens = {request.index: 1 for request in decodes if request not in batch.preempted}
            tokens.update((request.index, count) for request, count in batch.chunks)
            self.steps.append(tokens)
            self.victims.append([request.index for request in batch.preempted])
            return batch.unpromised()
        return batch


@dataclass
class Outcome:
    """What became of a tiny run; times in seconds."""

    trace: Trace
    log: LoggedRun
    steps: list[dict[int, int]]
    victims: list[list[int]]
    result: PolicyResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = policy_result("label", "policy", {}, self.trace, self.log)

    @property
    def tokens(self) -> list[list[float]]:
        """When each request's tokens came."""
        return [[time / SECOND for time in times] for times in token_times_ns(self.log, len(self.trace))]

    @property
    def iterations(self) -> Table:
        return self.result.iterations

    def column(self, name: str) -> list[Any]:
        """A column of requests.csv, with None where there is no value."""
        return [None if value != value else value for value in self.result.requests[name].tolist()]


def trace_of(requests: Sequence[tuple[float, ...]]) -> Trace:
    """A trace of (arrival in seconds, prompt, output) and perhaps a priority."""
    columns = list(zip(*requests, strict=True))
    return Trace(
        name="tiny",
        format="native",
        arrival_ns=np.array([round(arrival * SECOND) for arrival in columns[0]], dtype=np.int64),
        prompt_tokens=np.array(columns[1], dtype=np.int64),
        output_tokens=np.array(columns[2], dtype=np.int64),
        priority=np.array(columns[3], dtype=np.int64) if len(columns) > 3 else None,
    )


def replay(
    policy: Policy,
    *requests: tuple[float, ...],
    block_size: int = 16,
    num_blocks: int = 1000,
    costs: StepCosts = ONE_SECOND_A_STEP,
) -> Outcome:
    """Run `requests`, (arrival in seconds, prompt, output) and perhaps a priority, at one second a step."""
    watched = Watched(policy)
    jobs = (Request(i, round(arrival * SECOND), *map(int, rest)) for i, (arrival, *rest) in enumerate(requests))
    log = simulate(jobs, watched, GpuTimes(costs), block_size=block_size, num_blocks=num_blocks)
    return Outcome(trace_of(requests), log, watched.steps, watched.victims)
