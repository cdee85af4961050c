"""Tiny pipelines with everything written out: when each stage works on each micro-batch, and why it idles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.core import Request
from simulator.costs import LinearCosts, StepCosts
from simulator.engine import simulate
from simulator.metrics.bubbles import run_bubbles
from simulator.metrics.tokens import token_times_ns
from simulator.pipeline.bubbles import CAUSES, Bubbles
from simulator.pipeline.layers import split_layers
from simulator.pipeline.log import StageTimes
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.runlog import LoggedRun
from tests.simulator.runs import Watched


@dataclass
class Pipelined:
    """What became of a tiny run; times in nanoseconds. `steps[k]` maps requests to tokens of micro-batch k."""

    log: LoggedRun
    times: StageTimes
    found: Bubbles
    steps: list[dict[int, int]]

    @property
    def worked(self) -> list[list[tuple[int, int]]]:
        """(start, end) of each micro-batch, stage by stage."""
        columns = (self.times.start_ns, self.times.end_ns)
        return [
            [(start, end) for start, end in zip(*rows, strict=True)]
            for rows in zip(*(column.T.tolist() for column in columns), strict=True)
        ]

    @property
    def causes(self) -> list[dict[str, int]]:
        """What each stage has of idle time, by cause."""
        names = (*CAUSES, "arrivals")
        rows = self.found.caused_ns.tolist()
        return [{name: time for name, time in zip(names, row, strict=True) if time} for row in rows]

    @property
    def tokens(self) -> list[list[int]]:
        """When each request's tokens came."""
        return token_times_ns(self.log, len(self.log.requests["request"]))


def pipeline(
    policy: Policy,
    *requests: tuple[int, int, int],
    layers: Sequence[int] = (1, 1),
    costs: StepCosts | None = None,
    send: Callable[[int], float] = lambda _: 0,
    num_blocks: int = 1000,
) -> Pipelined:
    """Run `requests`, (arrival in nanoseconds, prompt, output); a layer takes 1 ns a token unless `costs` are given."""
    stages = split_layers(sum(layers), len(layers), layers)
    costs = costs or LinearCosts(per_token_ns=sum(layers))
    times = PipelineTimes(stage_prices(costs, stages), len(stages), send)
    watched = Watched(policy)
    jobs = (Request(index, *facts) for index, facts in enumerate(requests))
    log = simulate(jobs, watched, times, block_size=16, num_blocks=num_blocks)
    assert log.pipeline is not None
    return Pipelined(log, log.pipeline, run_bubbles(log)[0], watched.steps)
