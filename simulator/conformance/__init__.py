"""Whether a scheduling policy keeps the rules: a few hundred small workloads, each step of which is checked.

    from simulator.conformance import check_policy
    check_policy(MyPolicy(max_num_seqs=4), cases=200, seed=0)

What holds for every policy: `plan` is a function of the view and changes nothing; every request gets exactly its output
tokens, one a step, after its prompt; blocks are neither lost nor handed out twice; every request that fits the memory
finishes, in a pipeline too. What a policy promises in `PolicyBase.promises` is checked as well. Limits are reached only
if they are small: check a policy with options such as `max_num_seqs=4` as well as with its defaults.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.conformance.batches import Reached
from simulator.conformance.cases import Case, CaseMaker
from simulator.conformance.outcome import check_outcome, check_pipeline, check_repetition, run, run_unwatched
from simulator.conformance.starvation import check_stream, streams
from simulator.conformance.watch import Watch, named_like
from simulator.errors import PolicyError
from simulator.policy import PolicyBase
from simulator.promises import Promises

__all__ = ["Case", "Conformance", "ConformanceError", "check_case", "check_policy"]


class ConformanceError(PolicyError):
    """A policy broke a rule or a promise: `problem` says which; `case`, where there is one, repeats it."""

    def __init__(self, policy: str, problem: str, case: Case | None = None, where: str = "check_case") -> None:
        self.policy = policy
        self.problem = problem
        self.case = case
        super().__init__(f"{policy} {problem}" + (f"\n{where}: {case}" if case else ""))


@dataclass(frozen=True)
class Conformance:
    """A policy that passed: the number of cases, what it promises, and what the cases put to the test."""

    cases: int
    promises: Promises
    reached: Reached

    @property
    def untested(self) -> list[str]:
        """Limits that no step came up to, in words."""
        return [
            f"{promise} {limit} was not reached, there were at most {most} {what}"
            for promise, limit, most, what in self.reached.limits(self.promises)
            if limit is not None and most < limit
        ]


def check_policy(
    policy: PolicyBase,
    *,
    cases: int = 200,
    seed: int = 0,
    promises: Promises | None = None,
    steps_in_flight: Sequence[int] | None = None,
) -> Conformance:
    """Run `policy` through `cases` workloads made from `seed`. Raises ConformanceError for the first that fails.

    `promises` stands in for those of the policy. `steps_in_flight` are the numbers to try: 1 and the policy's own.
    """
    promises = policy.promises if promises is None else promises
    depths = sorted({1, policy.steps_in_flight}) if steps_in_flight is None else steps_in_flight
    maker = CaseMaker(policy, promises, seed, depths)
    reached = Reached()
    for number in range(cases):
        case = maker.make(number)
        try:
            reached.include(check_case(policy, case, promises))
        except ConformanceError as error:
            smaller, last = _without_bystanders(policy, case, promises, error)
            where = f"case {number} of seed {seed}" + (", fewer requests" if smaller != case else "")
            raise ConformanceError(last.policy, last.problem, smaller, where) from last.__cause__
    if not reached.steps:
        raise ConformanceError(type(policy).__name__, "ran no step in any case: it rejects every request")
    if promises.starvation_free:
        for stream in (stream for depth in depths for stream in streams(maker, depth)):
            try:
                check_stream(policy, stream)
            except PolicyError as error:
                raise _blame(policy, error) from error
    return Conformance(cases, promises, reached)


def check_case(policy: PolicyBase, case: Case, promises: Promises | None = None) -> Reached:
    """Run one workload twice, the first time with every call checked. Raises ConformanceError."""
    promises = policy.promises if promises is None else promises
    requests = list(case.arrivals())
    watch: Watch = named_like(Watch, policy)(policy, case.steps_in_flight, requests, case.block_size, promises)
    try:
        log = run(watch, case, requests)
        check_outcome(requests, log, watch, promises.serves_all)
        check_repetition(log, run_unwatched(policy, case), len(requests))
        if case.stages > 1:
            check_pipeline(policy, case, watch, promises.serves_all)
    except Exception as error:  # whatever goes wrong is told with the case in which it did
        raise _blame(policy, error, case) from error
    return watch.reached


def _blame(policy: PolicyBase, error: Exception, case: Case | None = None) -> ConformanceError:
    name = type(policy).__name__
    problem = str(error) if isinstance(error, PolicyError) else f"raised {type(error).__name__}: {error}"
    return ConformanceError(name, re.sub(rf"^{name}[ .]", "", problem), case)


def _without_bystanders(
    policy: PolicyBase, case: Case, promises: Promises, error: ConformanceError
) -> tuple[Case, ConformanceError]:
    """The case with the requests left out that the problem does not need."""
    for place in reversed(range(len(case.requests))):
        fewer = case.requests[:place] + case.requests[place + 1 :]
        try:
            if fewer:
                check_case(policy, replace(case, requests=fewer), promises)
        except ConformanceError as other:
            if _kind(other) == _kind(error):
                case, error = replace(case, requests=fewer), other
    return case, error


def _kind(error: ConformanceError) -> str:
    """The problem without its numbers."""
    return re.sub(r"\[.*\]|\d+", "", error.problem)
