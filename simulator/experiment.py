"""An experiment: which trace, costs, memory and policies, and what follows from them: prices, clocks, policies.

`simulator.experiment_keys` makes one of YAML and command line; the same keys are written back, with everything
resolved, as the run's `experiment.yaml`, and running that file repeats the run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le

from simulator.bundled import bundled_roots, resolve
from simulator.cost_table import CostTable
from simulator.costs import LinearCosts, StepCosts
from simulator.engines.profile import EngineProfile
from simulator.engines.times import engine_times
from simulator.errors import InputError
from simulator.exchanges import Sends, exchanges_of
from simulator.models import ModelShape
from simulator.network import Network
from simulator.pipeline.hosted import HostedPipelineTimes
from simulator.pipeline.layers import Stage, split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes, SendTime
from simulator.plugins import make_policy
from simulator.policy import Policy, Surroundings
from simulator.policy_runs import PolicyRun
from simulator.routers import RouterName
from simulator.step_times import CoastingTimes, GpuTimes
from simulator.table_costs import TableCosts

if TYPE_CHECKING:
    from simulator.disaggregation.deployment import Disaggregated


@dataclass(frozen=True)
class KvCache:
    """Paged KV memory; without `num_blocks`, what `gpu_memory_utilization` of the GPU leaves beside the weights."""

    block_size: Annotated[int, Ge(1), Le(2**20)] = 16
    num_blocks: Annotated[int, Ge(2), Le(2**40)] | None = None
    gpu_memory_utilization: Annotated[float, Gt(0), Le(1)] = 0.92


@dataclass(frozen=True)
class Parallel:
    """Degrees of model parallelism, and copies of the model. `tensor` GPUs hold a layer together, a shard each;
    `pipeline` such groups hold a part of the layers each, an even one unless `pipeline_layers` says how many. `router`
    shares requests out to the replicas."""

    tensor: Annotated[int, Ge(1)] = 1
    pipeline: Annotated[int, Ge(1)] = 1
    replicas: Annotated[int, Ge(1), Le(4096)] = 1
    pipeline_layers: tuple[Annotated[int, Ge(1)], ...] | None = None
    router: RouterName = "round-robin"

    @property
    def gpus(self) -> int:
        """All that serve."""
        return self.tensor * self.pipeline * self.replicas


def parallel_in_words(parallel: Parallel) -> str:
    """', tensor parallel 2, 4 stages, 2 replicas': what goes behind the name of the costs; nothing for one GPU."""
    parts = {"tensor parallel {}": parallel.tensor, "{} stages": parallel.pipeline, "{} replicas": parallel.replicas}
    return "".join(f", {words.format(count)}" for words, count in parts.items() if count > 1)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers of a run.

    `folders` are searched for users' policy modules; `table` is what `costs` names, None where that is a formula.
    `systems` has what serves a policy of that label where it is not this experiment's GPUs: others of the same, or a
    prefill and a decode pool.
    """

    trace: Path
    model: ModelShape
    model_source: str
    costs: str | LinearCosts
    costs_sha256: str
    engine: str
    kv_cache: KvCache
    parallel: Parallel
    policies: tuple[PolicyRun, ...]
    surroundings: Surroundings
    seed: int = 0
    limit: int | None = None
    speedup: float = 1.0
    repair: bool = False
    prefix_block_size: int = 16
    folders: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    table: CostTable | None = field(default=None, repr=False, compare=False)
    engine_profile: EngineProfile | None = field(default=None, repr=False, compare=False)
    network: Network | None = field(default=None, repr=False, compare=False)
    pipeline_network: Network | None = field(default=None, repr=False, compare=False)
    systems: Mapping[str, "Experiment | Disaggregated"] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool as an engine reports them."""
        assert self.kv_cache.num_blocks is not None
        return self.kv_cache.num_blocks

    def blocks_for(self, policy: Policy) -> tuple[int, int]:
        """Tokens of a block and number of blocks under `policy`, whose engine may have blocks of its own size."""
        size = self.kv_cache.block_size
        own = policy.block_size
        if own is None or own == size:
            return size, self.num_blocks
        return own, self.num_blocks * size // own

    def check_prefixes(self, run: PolicyRun, block_size: int) -> None:
        """Raises InputError where prefix ids of a trace say nothing about the policy's own blocks."""
        size = self.prefix_block_size
        if size % block_size and block_size % size:
            problem = f"blocks of {block_size} tokens and prefix_block_size {size}: one must be a multiple of the other"
            raise InputError(problem, path=run.source, key=run.label)

    def make_costs(self) -> StepCosts:
        """The prices of steps."""
        if self.table is not None:
            saved_us = 0.0 if self.engine_profile is None else self.engine_profile.all_reduce_saves_us
            return TableCosts(self.table, exchanges_of(self.table, self.network, saved_us))
        assert isinstance(self.costs, LinearCosts)
        return self.costs

    def make_times(self, costs: StepCosts, policy: Policy, run: PolicyRun) -> CoastingTimes | PipelineTimes:
        """The clock of the engine that runs `policy` at `costs`."""
        if self.parallel.pipeline > 1:
            if not policy.on_pipelines:
                problem = f"{run.policy} is not simulated in a pipeline, only with tensor parallelism and replicas"
                raise InputError(problem, path=run.source, key="parallel.pipeline")
            return self._pipeline_times(costs, policy, run)
        heat = costs.heat() if isinstance(costs, TableCosts) else None
        if self.engine_profile is None:
            return GpuTimes(costs, heat)
        return engine_times(
            costs,
            self.engine_profile,
            self.model.num_hidden_layers,
            max_num_seqs=run.options.get("max_num_seqs"),
            steps_in_flight=policy.steps_in_flight,
            ranks=self.parallel.tensor,
            heat=heat,
        )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the pipeline."""
        given = self.parallel.pipeline_layers
        return split_layers(self.model.num_hidden_layers, self.parallel.pipeline, given)

    def _pipeline_times(self, costs: StepCosts, policy: Policy, run: PolicyRun) -> PipelineTimes:
        stages = self.stages
        prices, sends = stage_prices(costs, stages), self._sends()
        heats = [costs.heat() for _ in stages] if isinstance(costs, TableCosts) else []
        known = [heat for heat in heats if heat is not None]
        if self.engine_profile is None:
            return PipelineTimes(prices, len(stages), sends, known)
        captured = self.engine_profile.cuda_graphs.captured(run.options.get("max_num_seqs"))
        mode = self.engine_profile.mode(policy.steps_in_flight)
        return HostedPipelineTimes(prices, stages, sends, known, mode, captured)

    def _sends(self) -> SendTime:
        """How long activations take from one stage to the next; no time where no network is known."""
        network, ranks = self.pipeline_network, self.parallel.tensor
        if network is None:
            return lambda _: 0.0
        tensors = 1 if self.engine_profile is None else self.engine_profile.sent_tensors
        return Sends(network, self.network or network, self.model, ranks, tensors).tokens_ns

    def make_policy(self, run: PolicyRun) -> Policy:
        """A fresh policy object."""
        return make_policy(run.policy, run.options, self.surroundings, self.folders)


def as_yaml_keys(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment under the keys that `resolve_experiment` reads."""
    costs = experiment.costs
    own = any(":" in run.policy for run in experiment.policies)
    return {
        "trace": portable(experiment.trace),
        "model": experiment.model_source,
        "costs": {"linear": asdict(costs)} if isinstance(costs, LinearCosts) else costs,
        "engine": experiment.engine,
        "network": None if experiment.network is None else experiment.network.source,
        "pipeline_network": None if experiment.pipeline_network is None else experiment.pipeline_network.source,
        "kv_cache": asdict(experiment.kv_cache),
        "parallel": asdict(experiment.parallel),
        "policies": [run.as_yaml_keys() for run in experiment.policies],
        "seed": experiment.seed,
        "limit": experiment.limit,
        "speedup": experiment.speedup,
        "repair": experiment.repair,
        "prefix_block_size": experiment.prefix_block_size,
    } | ({"policy_folders": [str(folder) for folder in experiment.folders]} if own else {})


def portable(path: Path) -> str:
    """A bundled file by its bundled name, any other by its absolute path."""
    whole = path.resolve()
    for root in bundled_roots():
        if whole.is_relative_to(root) and resolve(whole.relative_to(root), root) == whole:
            return str(whole.relative_to(root))
    return str(whole)
