"""The keys of a disaggregated system: its pools become experiments of their own, with one policy each."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from simulator.core import View
from simulator.decodes import Decodes
from simulator.disaggregation.deployment import Disaggregated, Transfer
from simulator.errors import InputError
from simulator.experiment import Experiment, as_yaml_keys
from simulator.network import Link, Network, default_network, load_network
from simulator.policy_runs import DISAGGREGATED, PolicyRun
from simulator.queues import FcfsQueue
from simulator.validation import parse

_PARALLEL = ("tensor", "pipeline", "replicas", "pipeline_layers", "router")
_OF_POOL = ("costs", "network", "pipeline_network", "kv_cache")
_SHARED = ("trace", "model", "engine", "seed", "repair", "prefix_block_size", "policy_folders")

Resolve = Callable[[Mapping[str, Any]], Experiment]
"""Makes an experiment of the keys of one."""


@dataclass(frozen=True)
class _LinkKeys:
    """A link by its facts."""

    gb_per_s: Annotated[float, Gt(0), Le(1e9)]
    latency_us: Annotated[float, Ge(0), Le(1e9)] = 0.0


@dataclass(frozen=True)
class _Keys:
    """`network` is named, or stated by its facts; without it the usual one of the prefill pool's GPU."""

    prefill: dict[str, Any]
    decode: dict[str, Any]
    network: str | dict[str, Any] | None = None
    transfer: Transfer = "whole"


def resolve_system(
    run: PolicyRun, raw: Mapping[str, Any], beside: Path | None, resolve: Resolve
) -> tuple[PolicyRun, Disaggregated]:
    """The two pools of `run`, an entry of the experiment whose keys are `raw`; the run comes back with every option.

    What a pool does not say of costs and memory is the experiment's; of GPUs, one. Raises InputError.
    """
    keys = parse(_Keys, run.options, path=run.source, prefix=f"{DISAGGREGATED}.")
    prefill, decode = (_pool(name, getattr(keys, name), run, raw, resolve) for name in ("prefill", "decode"))
    if replace(prefill.model, name="") != replace(decode.model, name=""):
        problem = f"the prefill pool computes {prefill.model.name}, the decode pool {decode.model.name}"
        raise InputError(problem, path=run.source, key=DISAGGREGATED)
    _require_stateless(decode, run)
    network = _network(keys.network, prefill, run, beside)
    network.send_us(1)
    options = {
        "prefill": _pool_keys(prefill),
        "decode": _pool_keys(decode),
        "network": _network_keys(network),
        "transfer": keys.transfer,
    }
    return replace(run, options=options), Disaggregated(prefill, decode, network, keys.transfer)


def _pool(name: str, pool: Mapping[str, Any], run: PolicyRun, raw: Mapping[str, Any], resolve: Resolve) -> Experiment:
    """One pool as an experiment."""
    for key in ("parallel", "label"):
        if key in pool:
            problem = f"a pool has no such key; it has {', '.join(_PARALLEL)} beside its policy's options"
            raise InputError(problem, path=run.source, key=f"{DISAGGREGATED}.{name}.{key}")
    policy = {key: value for key, value in pool.items() if key not in (*_PARALLEL, *_OF_POOL)}
    keys = {key: raw[key] for key in (*_SHARED, *_OF_POOL) if key in raw}
    keys |= {key: pool[key] for key in _OF_POOL if key in pool}
    for source in (raw, pool):
        if not isinstance(source.get("kv_cache", {}), dict):
            raise InputError("should be a mapping", path=run.source, key=f"{DISAGGREGATED}.{name}.kv_cache")
    keys["kv_cache"] = {**raw.get("kv_cache", {}), **pool.get("kv_cache", {})}
    keys["parallel"] = {key: pool[key] for key in _PARALLEL if key in pool}
    keys["policies"] = [{"label": name, **policy}]
    try:
        experiment = resolve(keys)
    except InputError as error:
        raise InputError(f"{name} pool: {error}", path=run.source, key=DISAGGREGATED) from None
    return experiment


def _require_stateless(decode: Experiment, run: PolicyRun) -> None:
    """A planner that remembers whom it has admitted would not know of those that come from the other pool."""
    [own] = decode.policies
    policy, size = decode.make_policy(own), decode.kv_cache.block_size
    planner: object = policy.start(View(size, decode.num_blocks, Decodes(size), FcfsQueue()), contents=True)
    if planner is not policy:
        problem = f"{own.policy} remembers whom it has admitted, so it cannot run a decode pool"
        raise InputError(problem, path=run.source, key=f"{DISAGGREGATED}.decode.policy")


def _network(given: str | dict[str, Any] | None, prefill: Experiment, run: PolicyRun, beside: Path | None) -> Network:
    key = f"{DISAGGREGATED}.network"
    if isinstance(given, dict):
        facts = parse(_LinkKeys, given, path=run.source, prefix=f"{key}.")
        about = f"{facts.gb_per_s:g} GB/s, {facts.latency_us:g} us"
        return Network(name=about, about=about, link=Link(facts.latency_us, facts.gb_per_s))
    if given is not None:
        return load_network(given, beside, key)
    usual = default_network(prefill.surroundings.gpu_name)
    if usual is None:
        problem = f"no network is known for {prefill.surroundings.gpu_name}; name one or give its gb_per_s"
        raise InputError(problem, path=run.source, key=key)
    return usual


def _network_keys(network: Network) -> str | dict[str, float]:
    """As it is given: a stated link has no source."""
    if network.source:
        return network.source
    assert network.link is not None
    return {"gb_per_s": network.link.gigabytes_per_s, "latency_us": network.link.latency_us}


def _pool_keys(pool: Experiment) -> dict[str, Any]:
    """A pool with everything resolved, under the keys that `resolve_system` reads."""
    [run] = pool.policies
    keys = as_yaml_keys(pool)
    parallel = {key: value for key, value in asdict(pool.parallel).items() if value is not None}
    of_pool = {key: keys[key] for key in _OF_POOL if keys[key] is not None}
    return {"policy": run.policy, **parallel, **of_pool, **run.options}
