"""Whether a request is served although newer ones keep coming: the promise `starvation_free`."""

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.conformance.cases import Case, CaseMaker, Row
from simulator.conformance.watch import AtDepth, named_like
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.errors import PolicyError
from simulator.policy import PolicyBase
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes

BLOCK_SIZE = 4
STEP_NS = 1000
NEWCOMERS = 3
"""In each step: together more than the pool can hold."""

AHEAD: tuple[Row, ...] = tuple((0, 8, 4, 1, 0) for _ in range(6))
VICTIMS: dict[str, Row] = {
    "a long prompt": (1, 40, 4, 1, 0),
    "a long output": (1, 4, 40, 1, 0),
    "the least urgent priority": (1, 8, 4, 9, 0),
    "nothing that sets it apart": (1, 6, 4, 1, 0),
}


@dataclass(frozen=True)
class Stream:
    """Six requests, then one that might starve, then newcomers in every step, in a small pool."""

    case: Case
    starved: int
    trait: str

    @property
    def last_ns(self) -> int:
        """When the last newcomer arrives."""
        return self.case.requests[-1][0]


def streams(maker: CaseMaker, steps_in_flight: int) -> Iterator[Stream]:
    """Each kind of victim in two pools.

    The newcomers are so many that the victim could be computed alone, token by token and after all who came before
    it, four times before the last one comes.
    """
    for trait, victim in VICTIMS.items():
        patience = 200 + 4 * sum(prompt + output for _, prompt, output, _, _ in (*AHEAD, victim))
        steps = [step for step in range(1, patience) for _ in range(NEWCOMERS)]
        newer = [(STEP_NS * step, 1 + n % 8, 2 + n % 7, n % 3, 0) for n, step in enumerate(steps)]
        requests = (*AHEAD, victim, *newer)
        most = max(maker.blocks(row, BLOCK_SIZE) for row in requests)
        for blocks in (most + most // 4, 3 * most):
            yield Stream(Case(BLOCK_SIZE, max(blocks, 16), requests, steps_in_flight), len(AHEAD), trait)


def check_stream(policy: PolicyBase, stream: Stream) -> None:
    """Raises PolicyError if the request still waits or runs when the last newcomer comes."""
    requests = list(stream.case.arrivals())
    victim, overtaken = requests[stream.starved], 0

    def on_step(scheduler: Scheduler) -> None:
        nonlocal overtaken
        if victim.state == Request.ENDED:
            raise _Served
        if scheduler.view.now_ns >= stream.last_ns:
            overtaken = sum(request.state == Request.ENDED for request in requests[stream.starved + 1 :])
            raise PolicyError(
                f"starves {victim!r}, which has {stream.trait}: {overtaken} newer requests finished before it; it"
                " promises starvation_free"
            )

    at_depth = named_like(AtDepth, policy)(policy, stream.case.steps_in_flight)
    costs = LinearCosts(fixed_ns=STEP_NS)
    blocks = stream.case.num_blocks + policy.null_blocks
    try:
        simulate(iter(requests), at_depth, GpuTimes(costs), block_size=BLOCK_SIZE, num_blocks=blocks, on_step=on_step)
    except _Served:
        return


class _Served(Exception):
    """The request in question has ended; what comes later does not matter."""
