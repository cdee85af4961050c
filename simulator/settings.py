"""`--set [LABEL.]KEY=VALUE`: options of policies that go before those of the experiment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from simulator.errors import InputError, nearest
from simulator.plugins import policy_class, policy_options
from simulator.policy_runs import POOLS, PolicyRun, on_ready_settings
from simulator.validation import parse_value


class _Place(NamedTuple):
    """Where options stand: a row of the comparison, or one of the two pools of a disaggregated one."""

    label: str
    pool: str | None
    options: Mapping[str, Any]
    """Of the policy there, by name with their defaults."""


def apply_settings(runs: list[PolicyRun], settings: Sequence[str], folders: tuple[Path, ...]) -> list[PolicyRun]:
    """`[LABEL.]KEY=VALUE` overrides; without a label every policy that has the option takes it, in pools as well.

    LABEL of a disaggregated system means both of its pools, LABEL.prefill and LABEL.decode one. Raises InputError.
    """
    for setting in settings:
        target, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"should be [LABEL.]KEY=VALUE, not {setting!r}", key="--set")
        places, key = _named(list(_places(runs, folders)), target)
        value = _setting_value(text, setting)
        chosen = [place for place in places if key in place.options]
        if not chosen and target != key:
            chosen = places[:1]  # what it has instead is said where its value is looked at
        elif not chosen:
            every = {name for place in places for name in place.options}
            problem = f"no policy of this run has this option; {nearest(key, every, 'options')}"
            raise InputError(problem, key=f"--set {target}")
        runs = [_with_value(run, chosen, key, value, folders) for run in runs]
    return runs


def _places(runs: Sequence[PolicyRun], folders: tuple[Path, ...]) -> Iterator[_Place]:
    for run in runs:
        if not run.disaggregated:
            yield _Place(run.label, None, policy_options(policy_class(run.policy, folders)))
            continue
        for pool in POOLS:
            policy = _policy_of(run.options.get(pool))
            if policy is not None:
                yield _Place(run.label, pool, policy_options(policy_class(policy, folders)))


def _policy_of(pool: Any) -> str | None:
    """The policy's name; what is wrong with the pool is told when it is made."""
    name = on_ready_settings(pool, None, None, "").get("policy") if isinstance(pool, dict) else None
    return name if isinstance(name, str) else None


def _named(places: Sequence[_Place], target: str) -> tuple[list[_Place], str]:
    """The places that a target speaks of, and the key."""
    names = {f"{place.label}." for place in places}
    names |= {f"{place.label}.{place.pool}." for place in places if place.pool}
    name = max((name for name in names if target.startswith(name)), key=len, default="")
    if not name and "." in target:
        hint = nearest(target.rpartition(".")[0], [place.label for place in places], "labels")
        raise InputError(f"no such label; {hint}", key=f"--set {target}")
    spoken_of = [place for place in places if name in ("", f"{place.label}.", f"{place.label}.{place.pool}.")]
    return spoken_of, target[len(name) :]


def _setting_value(text: str, setting: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InputError(f"not a YAML value: {text!r}", key=f"--set {setting}") from None


def _with_value(run: PolicyRun, chosen: Sequence[_Place], key: str, value: Any, folders: tuple[Path, ...]) -> PolicyRun:
    """The run with the option, where it is one of the chosen places."""
    options = dict(run.options)
    for place in chosen:
        if place.label != run.label:
            continue
        own = options if place.pool is None else {**options[place.pool]}
        policy = run.policy if place.pool is None else _policy_of(own)
        assert policy is not None, "only places with a policy are chosen"
        parse_value(policy_class(policy, folders), key, value, path="--set")
        own[key] = value
        if place.pool is not None:
            options[place.pool] = own
    return replace(run, options=options)
