"""Options and other values as the page shows them: as YAML has them."""

from collections.abc import Mapping
from typing import Any

import yaml

from simulator.policy_runs import POOLS
from simulator.results import PolicyResult

USUAL = {"tensor": 1, "pipeline": 1, "replicas": 1, "router": "round-robin"}  # of a pool


def options(result: PolicyResult, experiment: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(pool, its options), a pair a line; the pool is empty for those of the policy itself.

    What a pool has from the experiment is left out, and what one GPU needs not say.
    """
    shared = {**{name: experiment.get(name) for name in ("costs", "kv_cache")}, **USUAL}
    pools = {name: result.options[name] for name in POOLS if result.pools is not None}
    lines = {
        name: {key: value for key, value in pool.items() if shared.get(key, ...) != value}
        for name, pool in pools.items()
    }
    lines[""] = {name: value for name, value in result.options.items() if name not in pools}
    return [(name, [(key, inline(value)) for key, value in line.items()]) for name, line in lines.items()]


def inline(value: Any) -> str:
    """A value as YAML has it, on one line; text as it is."""
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def as_yaml(value: Any) -> str:
    """A value as YAML has it, on as many lines as it takes."""
    return yaml.safe_dump(_plain(value), sort_keys=False, allow_unicode=True, width=100)


def _plain(value: Any) -> Any:
    """Mappings, lists and scalars only: what safe YAML can write; anything else by its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or type(value) in (bool, int, float, str) else str(value)
