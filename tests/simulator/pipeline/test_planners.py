"""A planner that remembers, in a pipeline."""

from dataclasses import dataclass, field

from policies.orca import Orca
from simulator.core import Batch, Request, View
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Remembering


@dataclass(frozen=True)
class Noting(Orca):
    """Orca that notes which steps it is told of."""

    told: list[int] = field(default_factory=list, init=False, compare=False)

    def start(self, view: View, *, contents: bool) -> "NotingPlanner":  # noqa: ARG002 - the interface
        return NotingPlanner(self)


class NotingPlanner(Remembering):
    def __init__(self, policy: Noting) -> None:
        self.policy = policy

    def plan(self, view: View) -> Batch | None:
        return self.policy.plan(view)

    def completed(self, iteration: int) -> None:
        self.policy.told.append(iteration)


def test_every_step_is_told_once_and_in_order() -> None:
    """On three stages several steps are under way: each is told of when its outputs are there."""
    stages = split_layers(3, 3)
    times = PipelineTimes(stage_prices(LinearCosts(fixed_ns=30), stages), 3, lambda _: 1)
    policy = Noting()
    requests = [Request(index, 5 * index, 4, 6) for index in range(5)]
    run = simulate(iter(requests), policy, times, block_size=4, num_blocks=100)
    assert policy.told == list(range(len(run.iterations)))
