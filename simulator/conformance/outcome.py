"""What must hold once a run is over, for every policy."""

from itertools import pairwise
from typing import cast

from simulator.conformance.cases import Case
from simulator.conformance.watch import AtDepth, Watch, named_like
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.errors import PolicyError
from simulator.metrics.tokens import token_times_ns
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy, PolicyBase
from simulator.runlog import FINISHED, ITERATION_COLUMNS, LoggedRun
from simulator.step_times import GpuTimes

COSTS = LinearCosts(fixed_ns=1000, per_token_ns=10, per_context_token_ns=1)


def run(policy: AtDepth, case: Case, requests: list[Request], stages: int = 1) -> LoggedRun:
    """`case` under `policy`; `requests` are its arrivals."""
    split = split_layers(stages, stages)
    pipeline = PipelineTimes(stage_prices(COSTS, split), stages, lambda _: 10)
    return simulate(
        iter(requests),
        cast(Policy, policy),
        GpuTimes(COSTS) if stages == 1 else pipeline,
        block_size=case.block_size,
        num_blocks=case.num_blocks + policy.policy.null_blocks,
        prefixes=any(family for *_, family in case.requests),
    )


def check_pipeline(policy: PolicyBase, case: Case, watch: Watch, serves_all: bool) -> None:
    """On several stages who fits the memory finishes, one token after the other. Raises PolicyError.

    `watch` has seen the case on one stage.
    """
    requests = list(case.arrivals())
    log = run(named_like(AtDepth, policy)(policy, case.steps_in_flight), case, requests, case.stages)
    where = f"in a pipeline of {case.stages} stages"
    status = dict(zip(log.requests["request"].tolist(), log.requests["status"].tolist(), strict=True))
    for request, times in zip(requests, token_times_ns(log, len(requests)), strict=True):
        if serves_all and status.get(request.index) != FINISHED and _fits(request, watch):
            why = log.reasons.get(request.index, "")
            raise PolicyError(f"{where} left {request!r} unfinished, which fits the memory: {why}")
        if any(later <= earlier for earlier, later in pairwise((request.arrival_ns, *times))):
            raise PolicyError(f"{where} gave {request!r} two tokens at once, or one too early: {times}")
        if status[request.index] == FINISHED and len(times) != request.target_tokens:
            raise PolicyError(f"{where} finished {request!r} with {len(times)} output tokens")


def run_unwatched(policy: PolicyBase, case: Case) -> LoggedRun:
    """`case` under the policy itself, which is asked as seldom as the scheduler likes."""
    return run(named_like(AtDepth, policy)(policy, case.steps_in_flight), case, list(case.arrivals()))


def check_outcome(requests: list[Request], log: LoggedRun, watch: Watch, serves_all: bool) -> None:
    """Every request has ended once, with its tokens in order of time, and nothing is held. Raises PolicyError."""
    view = watch.view
    assert view is not None, "requests were offered to the policy"
    watch.settle(view)
    watch.ledger.compare_log(log)
    if view.free_blocks != view.total_blocks or view.running:
        raise PolicyError(f"left {view.total_blocks - view.free_blocks} of {view.total_blocks} blocks taken at the end")
    if sorted(log.requests["request"].tolist()) != list(range(len(requests))):
        raise PolicyError(f"ended {len(log.requests['request'])} requests of {len(requests)}")
    status = dict(zip(log.requests["request"].tolist(), log.requests["status"].tolist(), strict=True))
    for request, times in zip(requests, token_times_ns(log, len(requests)), strict=True):
        ended = status[request.index]
        if ended == FINISHED and len(times) != request.target_tokens:
            raise PolicyError(f"finished {request!r} with {len(times)} output tokens, not {request.target_tokens}")
        if any(later <= earlier for earlier, later in pairwise((request.arrival_ns, *times))):
            raise PolicyError(f"gave {request!r} two tokens at once, or one too early: {times}")
        if serves_all and ended != FINISHED and _fits(request, watch):
            why = log.reasons.get(request.index, "")
            raise PolicyError(f"left {request!r} unfinished, which fits the memory: {why}")


def check_repetition(log: LoggedRun, again: LoggedRun, requests: int) -> None:
    """The same run, each plan asked for once, must be the same. Raises PolicyError."""
    for name in ITERATION_COLUMNS:
        columns = log.iterations[name].tolist(), again.iterations[name].tolist()
        for iteration, (one, two) in enumerate(zip(*columns, strict=False)):
            if one != two:
                raise PolicyError(
                    "plan is no function of the view: the same run again was planned differently, iteration"
                    f" {iteration} has {name} {two} instead of {one}"
                )
    if token_times_ns(log, requests) != token_times_ns(again, requests):
        raise PolicyError("plan is no function of the view: the same run again gave other requests their tokens")


def _fits(request: Request, watch: Watch) -> bool:
    """Whether the memory can hold `request` to its end, and the policy would take it back even then."""
    view, policy = watch.view, watch.policy
    assert view is not None
    probe = Request(request.index, request.arrival_ns, request.prompt_tokens, request.output_tokens, request.priority)
    probe.target_tokens = request.target_tokens
    probe.known = request.prompt_tokens + request.target_tokens
    return -(-probe.known // view.block_size) <= view.total_blocks and policy.rejects(probe, view) is None
