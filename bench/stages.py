"""What a stage of a pipeline costs: the recursion of `simulator.pipeline.times` against SimPy processes, in CPU time.

    python -m bench.stages [20000]

The processes are those of the tests: a store, a timeout and a send for each micro-batch and stage; `ordered` stores
hand out micro-batches in the order in which they were planned, `plain` ones as they come, which is right where no send
passes another. All three must end every micro-batch at the same nanosecond. Prints Markdown.
"""

import sys
import time
from array import array
from collections.abc import Callable

import simpy

from simulator.costs import LinearCosts
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from tests.simulator.pipeline.processes import Job, Stages

STAGE_NS, SENDING_NS, TOKENS = 640, 5, 64


class InOrder(simpy.FilterStore):  # type: ignore[misc]
    """As the tests have it."""


class AsTheyCome(simpy.Store):  # type: ignore[misc]
    """A plain store that is asked for a certain micro-batch, and takes the next."""

    def get(self, _: object = None) -> simpy.Event:  # type: ignore[override]
        """The oldest."""
        return super().get()


def recursion(stages: int, count: int) -> tuple[float, list[int], PipelineTimes]:
    """CPU seconds, ends and log of `count` micro-batches, as many under way as stages."""
    costs = LinearCosts(per_token_ns=stages * STAGE_NS // TOKENS)
    prices = stage_prices(costs, split_layers(stages, stages))
    times, ends = PipelineTimes(prices, stages, lambda _: SENDING_NS), array("q")
    begun = time.process_time()
    for k in range(count):
        times.book(ends, ends[k - stages] if k >= stages else 0, TOKENS, TOKENS, 6400, 100, ())
    return time.process_time() - begun, ends.tolist(), times


def processes(
    stages: int, planned_ns: list[int], store: Callable[[simpy.Environment], simpy.Store]
) -> tuple[float, list[int]]:
    """The same with SimPy."""
    jobs = [Job(at, [STAGE_NS] * stages, SENDING_NS) for at in planned_ns]
    chain = Stages(stages)
    chain.inboxes = [store(chain.env) for _ in range(stages)]
    begun = time.process_time()
    chain.run(jobs)
    return time.process_time() - begun, [job.worked[-1][1] for job in jobs]


def main(count: int) -> None:
    """Print the table."""
    print("| stages | recursion, us a stage | plain stores | ordered stores | ratios |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for stages in (2, 4, 8):
        measured: dict[str, list[float]] = {"recursion": [], "plain": [], "ordered": []}
        for _ in range(5):
            spent, ends, times = recursion(stages, count)
            measured["recursion"].append(spent)
            for name, store in (("plain", AsTheyCome), ("ordered", InOrder)):
                spent, same = processes(stages, times.log.planned_ns.tolist(), store)
                assert same == ends, "the processes end micro-batches at other times"
                measured[name].append(spent)
        best = {name: min(seconds) / count / stages * 1e6 for name, seconds in measured.items()}
        ratios = " and ".join(f"{best[name] / best['recursion']:.0f}" for name in ("plain", "ordered"))
        print(
            f"| {stages} | {best['recursion']:.2f} | {best['plain']:.1f} | {best['ordered']:.1f} | {ratios} |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20000)
