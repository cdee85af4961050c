"""A disaggregated system of an experiment: two pools, each an experiment of its own, and the link between them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from simulator.clients import requests_of
from simulator.disaggregation.link import KvSends, Link
from simulator.disaggregation.log import PooledRun
from simulator.disaggregation.schedulers import DecodeScheduler
from simulator.disaggregation.system import Pool, simulate_pools
from simulator.experiment import Experiment
from simulator.metrics.pools import Pools
from simulator.metrics.summary import policy_result
from simulator.network import Network
from simulator.policy_runs import PolicyRun
from simulator.replicas import as_one
from simulator.results import PolicyResult
from simulator.routers import make_router
from simulator.run_notes import limits_met, notes_of
from simulator.scheduler import Scheduler
from simulator.table_costs import TableCosts
from simulator.trace import Trace

Transfer = Literal["whole", "layerwise"]
OnStep = Callable[[Scheduler], None]


@dataclass(frozen=True)
class Disaggregated:
    """`prefill` and `decode` have one policy each, and costs, memory and numbers of GPUs of their own."""

    prefill: Experiment
    decode: Experiment
    network: Network
    transfer: Transfer

    @property
    def gpus(self) -> int:
        """Of both pools."""
        return self.prefill.parallel.gpus + self.decode.parallel.gpus

    def make_link(self) -> Link:
        """From a prefill replica; as many of its GPUs send a part as there are pairs with those of a decode replica."""
        sides = (self.prefill.parallel, self.decode.parallel)
        sends = KvSends(self.network, self.prefill.model, min(side.gpus // side.replicas for side in sides))
        return Link(sends.whole_ns, sends.layer_ns, self.prefill.model.num_hidden_layers)

    def run(self, run: PolicyRun, trace: Trace, on_step: OnStep | None = None) -> PolicyResult:
        """The two pools over the whole trace."""
        prefill, decode = _Side(self.prefill), _Side(self.decode)
        if trace.prefix_ids is not None:
            for experiment, side in ((self.prefill, prefill), (self.decode, decode)):
                experiment.check_prefixes(run, side.pool.block_size)
        log = simulate_pools(
            requests_of(trace, prefill.pool.block_size, self.prefill.prefix_block_size),
            prefill.pool,
            decode.pool,
            self.make_link,
            layerwise=self.transfer == "layerwise",
            prefixes=trace.prefix_ids is not None,
            on_step=None if on_step is None else _of_decodes(on_step),
        )
        names = (prefill.run.policy, decode.run.policy)
        pools = Pools(log, names, (self.prefill.parallel.gpus, self.decode.parallel.gpus))
        result = policy_result(run.label, run.policy, run.options, trace, log.log, self.gpus, pools)
        notes = self._notes(log, trace, prefill, decode)
        return replace(result, notes=tuple(notes))

    def _notes(self, log: PooledRun, trace: Trace, prefill: "_Side", decode: "_Side") -> list[str]:
        cut, replicas = log.prefill_replicas, log.log.replicas
        notes = notes_of(log.log, trace)
        for name, side, logs in (("prefill", prefill, replicas[:cut]), ("decode", decode, replicas[cut:])):
            notes += [f"{name} pool: {note}" for note in limits_met(as_one(logs), side.table, side.run.options)]
        return notes


class _Side:
    """A pool, made from its experiment."""

    def __init__(self, experiment: Experiment) -> None:
        [self.run] = experiment.policies
        policy, costs = experiment.make_policy(self.run), experiment.make_costs()
        self.table = costs if isinstance(costs, TableCosts) else None
        times = [experiment.make_times(costs, policy, self.run) for _ in range(experiment.parallel.replicas)]
        block_size, num_blocks = experiment.blocks_for(policy)
        router = make_router(experiment.parallel.router, experiment.seed)
        self.pool = Pool(policy, times, block_size, num_blocks, router)


def _of_decodes(on_step: OnStep) -> OnStep:
    """Progress is counted where requests end."""

    def after(scheduler: Any) -> None:
        if isinstance(scheduler, DecodeScheduler):
            on_step(scheduler)

    return after
