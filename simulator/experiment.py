"""An experiment: which trace, costs, memory and policies. YAML and command line become one frozen `Experiment`.

Below this module nobody reads configuration. The same YAML keys are written back, with everything resolved, as the
run's `experiment.yaml`, and running that file repeats the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from simulator.bundled import bundled_roots, resolve
from simulator.core import Policy, Surroundings
from simulator.cost_table import CostTable, Gpu, load_gpu
from simulator.costs import LinearCosts, StepCosts
from simulator.engines.profile import NONE, EngineProfile, Handing, engine_names, engine_sha256, load_engine
from simulator.engines.times import engine_times
from simulator.errors import InputError, nearest
from simulator.exchanges import Sends, exchanges_of
from simulator.files import similar_file
from simulator.models import ModelShape, load_model, model_names
from simulator.named_tables import find_table, table_names
from simulator.network import Network, load_network, network_of
from simulator.pipeline.hosted import HostedPipelineTimes
from simulator.pipeline.layers import Stage, split_layers, stage_kv_bytes, stage_weight_bytes
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes, SendTime
from simulator.plugins import make_policy
from simulator.policy_runs import PolicyRun, apply_settings, complete_options, resolve_policies
from simulator.routers import RouterName
from simulator.step_times import CoastingTimes, GpuTimes
from simulator.table_costs import TableCosts
from simulator.validation import parse

DEFAULT_TRACE = "traces/conversation.csv"
DEFAULT_COSTS = "h200/llama-3.1-8b"
DEFAULT_MODEL, DEFAULT_GPU = "llama-3.1-8b", "h200"
DEFAULT_POLICIES = ("orca", "sarathi", "vllm")


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


def parallel_in_words(parallel: Parallel) -> str:
    """', tensor parallel 2, 4 stages, 2 replicas': what goes behind the name of the costs; nothing for one GPU."""
    parts = {"tensor parallel {}": parallel.tensor, "{} stages": parallel.pipeline, "{} replicas": parallel.replicas}
    return "".join(f", {words.format(count)}" for words, count in parts.items() if count > 1)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers of a run.

    `folders` are searched for users' policy modules; `table` is what `costs` names, None where that is a formula.
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

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool as an engine reports them."""
        assert self.kv_cache.num_blocks is not None
        return self.kv_cache.num_blocks

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


@dataclass(frozen=True)
class _Keys:
    """The keys of an experiment YAML; what `None` means is decided in `resolve_experiment`."""

    trace: str = DEFAULT_TRACE
    model: str | None = None
    costs: str | dict[str, Any] = DEFAULT_COSTS
    engine: str = NONE
    network: str | None = None
    pipeline_network: str | None = None
    kv_cache: KvCache = KvCache()
    parallel: Parallel = Parallel()
    policies: tuple[str | dict[str, Any], ...] = DEFAULT_POLICIES
    seed: Annotated[int, Ge(0)] = 0
    limit: Annotated[int, Ge(1)] | None = None
    speedup: Annotated[float, Gt(0), Le(1e12)] = 1.0
    repair: bool = False
    prefix_block_size: Annotated[int, Ge(1), Le(2**20)] = 16
    policy_folders: tuple[str, ...] = ()
    provenance: dict[str, Any] | None = None


def resolve_experiment(raw: Mapping[str, Any], *, path: Path | None = None, settings: Sequence[str] = ()) -> Experiment:
    """The experiment that `raw` (keys of an experiment YAML, read from `path`) describes.

    `settings` are `[LABEL.]KEY=VALUE` overrides of policy options. Raises InputError.
    """
    keys = parse(_Keys, raw, path=path)
    beside = path.parent.resolve() if path else None
    trace = resolve(keys.trace, beside)
    if trace is None or not trace.is_file():
        problem = "is a folder" if trace else f"not found{similar_file(keys.trace, beside)}"
        raise InputError(f'trace "{keys.trace}" {problem}', path=path, key="trace")
    tensor = keys.parallel.tensor
    costs, table = _resolve_costs(keys.costs, beside, path, tensor)
    model, gpu = _resolve_model(keys.model, table, beside)
    profile = load_engine(keys.engine, beside)
    searched = [(beside or Path.cwd()) / folder for folder in keys.policy_folders]
    folders = tuple(dict.fromkeys(searched or [*([beside] if beside else []), Path.cwd()]))
    surroundings = Surroundings(gpu.name, gpu.memory_bytes, model.max_position_embeddings)
    runs = resolve_policies(keys.policies, beside, path)
    runs = apply_settings(runs, settings, folders)
    notes = [] if table else [f"analytic costs name no GPU: memory and defaults are those of an {gpu.name}"]
    notes += [f"{model.name}: {approximation}" for approximation in model.approximations]
    network = _resolve_network(keys.network, gpu, tensor, beside)
    pipeline_network = None
    if keys.parallel.pipeline > 1:
        pipeline_network = _resolve_pipeline_network(keys, gpu, beside)
        if table is not None and pipeline_network is None:
            notes.append("activations take no time from stage to stage: give a --network")
    elif keys.pipeline_network is not None:
        load_network(keys.pipeline_network, beside, "pipeline_network")
    notes += _pipeline_notes(profile, keys.parallel.pipeline)
    stages = split_layers(model.num_hidden_layers, keys.parallel.pipeline, keys.parallel.pipeline_layers)
    if table is not None and tensor > 1 and network is None:
        notes.append(f"steps are priced without the all-reduces between the {tensor} GPUs, so they are too short")
    if table is not None and table.metadata.origin:
        notes.append(table.metadata.origin)
    changed = (keys.provenance or {}).get("costs_sha256")
    if table is not None and changed not in (None, table.sha256):
        notes.append(f"the cost table {keys.costs} has changed since {path} was written: results will differ")
    changed = (keys.provenance or {}).get("engine_sha256")
    source = _engine_source(keys.engine, beside)
    if changed not in (None, engine_sha256(source)):
        notes.append(f"the engine profile {keys.engine} has changed since {path} was written: results will differ")
    return Experiment(
        trace=trace,
        model=model,
        model_source=_model_source(keys.model or model.name, table, beside),
        costs=costs,
        costs_sha256=table.sha256 if table else "",
        engine=source,
        kv_cache=_resolve_kv_cache(keys.kv_cache, model.shard(tensor, "parallel.tensor"), stages, gpu),
        parallel=keys.parallel,
        policies=complete_options(runs, surroundings, folders),
        surroundings=surroundings,
        seed=keys.seed,
        limit=keys.limit,
        speedup=keys.speedup,
        repair=keys.repair,
        prefix_block_size=_prefix_block_size(keys, path),
        folders=folders,
        notes=tuple(notes),
        table=table,
        engine_profile=profile,
        network=network,
        pipeline_network=pipeline_network,
    )


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
        "policies": [{"policy": run.policy, "label": run.label, **run.options} for run in experiment.policies],
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


def _resolve_costs(
    costs: str | dict[str, Any], beside: Path | None, path: Path | None, tensor: int
) -> tuple[str | LinearCosts, CostTable | None]:
    if isinstance(costs, str):
        table = find_table(costs, beside, tensor)
        return table.name if table.name in table_names() else str(Path(table.name).resolve()), table
    for key in costs:
        if key != "linear":
            raise InputError(f"unknown form; {nearest(str(key), ['linear'], 'forms')}", path=path, key=f"costs.{key}")
    if not isinstance(costs.get("linear"), dict):
        raise InputError("should be a mapping: {linear: {fixed_ns: ..., per_token_ns: ...}}", path=path, key="costs")
    return parse(LinearCosts, costs["linear"], path=path, prefix="costs.linear."), None


def _resolve_model(name: str | None, table: CostTable | None, beside: Path | None) -> tuple[ModelShape, Gpu]:
    """The model's shape and the GPU; without a table the defaults."""
    if table is None:
        return _load_model(name or DEFAULT_MODEL, beside), load_gpu(DEFAULT_GPU)
    measured = table.metadata.model
    if name is not None and name != measured.name:
        wanted = _load_model(name, beside)
        if replace(wanted, name=measured.name, approximations=measured.approximations) != measured:
            raise InputError(
                f'cost table {table.name} was measured for "{measured.name}", not "{wanted.name}";'
                " give the table of that model with --costs or measure one with profile-gpu",
                key="model",
            )
    return measured, table.metadata.gpu


def _model_source(name: str, table: CostTable | None, beside: Path | None) -> str:
    """A model given as a file or folder by its absolute path, so that the name means the same from anywhere."""
    if name in model_names() or (table and name == table.metadata.model.name):
        return name
    path = resolve(name, beside) or Path(name)
    return str(path.resolve()) if path.exists() else name


def _pipeline_notes(profile: EngineProfile | None, stages: int) -> list[str]:
    """Where the hosts of stages are not known, or only from shorter pipelines."""
    if profile is None or stages == 1:
        return []
    if {profile.synchronous.pipeline, profile.asynchronous.pipeline} == {Handing()}:
        return [f"engine {profile.name} does not say what stages hand each other: their hosts do it in no time"]
    if stages > 2:
        return [
            f"what stages hand each other was found on two of them: {stages} with engine {profile.name} are a guess"
        ]
    return []


def _resolve_pipeline_network(keys: "_Keys", gpu: Gpu, beside: Path | None) -> Network | None:
    """What joins the stages: named for them, or as the tensor-parallel ranks; checked for what it is to carry."""
    key = "network" if keys.pipeline_network is None else "pipeline_network"
    network = network_of(keys.pipeline_network or keys.network, gpu.name, beside, key)
    if network is not None:
        network.send_us(1)
    return network


def _resolve_network(name: str | None, gpu: Gpu, tensor: int, beside: Path | None) -> Network | None:
    """The network named, or else the usual one of the GPU; checked for as many ranks."""
    network = network_of(name, gpu.name, beside) if name is not None or tensor > 1 else None
    if network is not None:
        network.all_reduce_us(1, tensor), network.all_gather_us(1, tensor)
    return network


def _engine_source(name: str, beside: Path | None) -> str:
    """A profile given as a file by its absolute path, as `_model_source`."""
    path = None if name == NONE or name in engine_names() else resolve(name, beside)
    return str(path.resolve()) if path is not None else name


def _load_model(name: str, beside: Path | None) -> ModelShape:
    path = resolve(name, beside)
    return load_model(str(path) if path is not None and path.is_file() else name)


def _prefix_block_size(keys: _Keys, path: Path | None) -> int:
    """Tokens for which a trace's prefix id stands; it must tile the KV blocks, or be tiled by them."""
    size, block = keys.prefix_block_size, keys.kv_cache.block_size
    if size % block and block % size:
        raise InputError(
            f"{size} and kv_cache.block_size {block}: one must be a multiple of the other",
            path=path,
            key="prefix_block_size",
        )
    return size


def _resolve_kv_cache(wanted: KvCache, model: ModelShape, stages: Sequence[Stage], gpu: Gpu) -> KvCache:
    """Blocks that fit beside the weights of `model`, of one rank where it is sharded: each holds its part of all. In a
    pipeline a block is on every stage, its layers' part of it, so the stage with the least room decides."""
    if wanted.num_blocks is not None:
        return wanted
    usable = int(wanted.gpu_memory_utilization * gpu.memory_bytes)
    room = {
        stage: (usable - stage_weight_bytes(model, stage)) // (wanted.block_size * stage_kv_bytes(model, stage))
        for stage in stages
    }
    fullest = min(stages, key=lambda stage: room[stage])
    blocks = room[fullest]
    if blocks < 2:
        weights = stage_weight_bytes(model, fullest)
        raise InputError(
            f"the weights of {model.name} ({weights / 1e9:.1f} GB on a GPU) leave no room for a KV cache in"
            f" {wanted.gpu_memory_utilization:g} of {gpu.name}'s {gpu.memory_bytes / 1e9:.1f} GB",
            key="kv_cache.gpu_memory_utilization",
        )
    return replace(wanted, num_blocks=blocks)
