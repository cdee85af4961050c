"""The keys of an experiment YAML, and of the command line, become one frozen `Experiment`.

Below this module nobody reads configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from simulator.bundled import resolve
from simulator.cost_table import CostTable, Gpu, load_gpu
from simulator.costs import LinearCosts
from simulator.engines.profile import NONE, EngineProfile, Handing, engine_names, engine_sha256, load_engine
from simulator.errors import InputError, nearest
from simulator.experiment import Experiment, KvCache, Parallel
from simulator.files import similar_file
from simulator.models import ModelShape, load_model, model_names
from simulator.named_tables import find_table, table_names
from simulator.network import Network, load_network, network_of
from simulator.pipeline.layers import Stage, split_layers, stage_kv_bytes, stage_weight_bytes
from simulator.plugins import policy_class
from simulator.policy import Surroundings
from simulator.policy_runs import PolicyRun, complete_options, resolve_policies
from simulator.settings import apply_settings
from simulator.systems import notes_of_system, resolve_systems
from simulator.validation import parse

DEFAULT_TRACE = "traces/conversation.csv"
DEFAULT_COSTS = "h200/llama-3.1-8b"
DEFAULT_MODEL, DEFAULT_GPU = "llama-3.1-8b", "h200"
DEFAULT_POLICIES = ("orca", "sarathi", "vllm")


@dataclass(frozen=True)
class _Keys:
    """The keys of an experiment YAML; what `None` means is decided in `resolve_experiment`."""

    trace: str = DEFAULT_TRACE
    model: str | None = None
    costs: str | dict[str, Any] = DEFAULT_COSTS
    engine: str = NONE
    network: str | None = None
    pipeline_network: str | None = None
    kv_cache: KvCache = field(default_factory=KvCache)
    parallel: Parallel = field(default_factory=Parallel)
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
    source = _engine_source(keys.engine, beside)
    notes += _changes(keys, path, table, source)
    complete = complete_options(runs, surroundings, folders)
    notes += _foreign_hosts(complete, profile, folders)
    policies, systems = resolve_systems(complete, raw, beside, lambda keys: resolve_experiment(keys, path=path))
    notes += [f"{label}: {note}" for label, system in systems.items() for note in notes_of_system(system, notes)]
    return Experiment(
        trace=trace,
        model=model,
        model_source=_model_source(keys.model or model.name, table, beside),
        costs=costs,
        costs_sha256=table.sha256 if table else "",
        engine=source,
        kv_cache=_resolve_kv_cache(keys.kv_cache, model.shard(tensor, "parallel.tensor"), stages, gpu),
        parallel=keys.parallel,
        policies=policies,
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
        systems=systems,
    )


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


def _changes(keys: _Keys, path: Path | None, table: CostTable | None, engine: str) -> list[str]:
    """What is no longer as it was when the experiment was recorded."""
    notes, recorded = [], keys.provenance or {}
    if table is not None and recorded.get("costs_sha256") not in (None, table.sha256):
        notes.append(f"the cost table {keys.costs} has changed since {path} was written: results will differ")
    if recorded.get("engine_sha256") not in (None, engine_sha256(engine)):
        notes.append(f"the engine profile {keys.engine} has changed since {path} was written: results will differ")
    return notes


def _foreign_hosts(runs: Sequence[PolicyRun], profile: EngineProfile | None, folders: tuple[Path, ...]) -> list[str]:
    """Whose host takes another engine's times."""
    if profile is None:
        return []
    notes = []
    for run in runs:
        own = None if run.disaggregated else policy_class(run.policy, folders).own_engine
        if own is not None and own.lower() not in profile.name.lower():
            notes.append(f"{run.label}: its host takes the times of {profile.name}, since {own}'s are not known")
    return notes


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
