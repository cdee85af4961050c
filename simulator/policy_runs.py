"""The policies of an experiment: names, files and mappings become runs with every option spelled out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from simulator.bundled import resolve
from simulator.errors import InputError, nearest
from simulator.files import load_yaml, similar_file
from simulator.plugins import (
    experiment_files,
    make_policy,
    policy_names,
    setting_names,
)
from simulator.policy import Surroundings

DISAGGREGATED = "disaggregated"
"""The key of an entry that is a system of two pools."""
POOLS = ("prefill", "decode")


@dataclass(frozen=True)
class PolicyRun:
    """One row of the comparison: the policy's name, its label and all its options; `source` is where it was given.

    `parallel` are GPUs of its own, where it has some. Of a disaggregated system (`DISAGGREGATED` for a policy) the
    options are those of its two pools.
    """

    label: str
    policy: str
    options: dict[str, Any]
    source: str = ""
    parallel: dict[str, Any] | None = None

    @property
    def disaggregated(self) -> bool:
        """Whether it is not one policy, but a prefill and a decode pool."""
        return self.policy == DISAGGREGATED

    def as_yaml_keys(self) -> dict[str, Any]:
        """The entry of `policies` that it was made of, with every option."""
        if self.disaggregated:
            return {DISAGGREGATED: self.options, "label": self.label}
        own = {} if self.parallel is None else {"parallel": self.parallel}
        return {"policy": self.policy, "label": self.label, **own, **self.options}


def resolve_policies(
    entries: Sequence[str | dict[str, Any]], beside: Path | None, path: Path | None
) -> list[PolicyRun]:
    if not entries:
        raise InputError("no policy given", path=path, key="policies")
    runs: list[PolicyRun] = []
    for place, entry in enumerate(entries):
        raw, where = _policy_mapping(entry, beside, path, f"policies.{place}")
        labels = [run.label for run in runs]
        if DISAGGREGATED in raw:
            runs.append(_two_pools(raw, where, labels))
            continue
        options = {key: value for key, value in raw.items() if key not in ("policy", "label", "parallel")}
        name = raw.get("policy")
        if not isinstance(name, str):
            hint = f"a policy's name ({', '.join(policy_names())}) or package.module:Class"
            raise InputError(f"should be {hint}, not {name!r}", path=where, key="policy")
        parallel = _mapping(raw["parallel"], where, "parallel") if "parallel" in raw else None
        runs.append(PolicyRun(_label(raw, where, name, labels), name, options, where, parallel))
    return runs


def _two_pools(raw: Mapping[str, Any], where: str, labels: Sequence[str]) -> PolicyRun:
    """`{disaggregated: {prefill: ..., decode: ...}, label: ...}`; what is in it is looked at later."""
    for key in raw:
        if key not in (DISAGGREGATED, "label"):
            known = nearest(str(key), [DISAGGREGATED, "label"], "keys")
            raise InputError(f"unknown key beside {DISAGGREGATED}; {known}", path=where, key=str(key))
    options = dict(_mapping(raw[DISAGGREGATED], where, DISAGGREGATED))
    options |= {pool: {"policy": options[pool]} for pool in POOLS if isinstance(options.get(pool), str)}
    return PolicyRun(_label(raw, where, DISAGGREGATED, labels), DISAGGREGATED, options, where)


def _mapping(value: Any, where: str, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"should be a mapping, not {value!r}", path=where, key=key)
    return value


def _policy_mapping(
    entry: str | dict[str, Any], beside: Path | None, path: Path | None, key: str
) -> tuple[dict[str, Any], str]:
    """An entry's `policy:` mapping, and where it stands for messages."""
    if isinstance(entry, dict):
        return on_ready_settings(entry, beside, path, key), f"{path}, {key}" if path else key
    if ":" in entry and not entry.endswith((".yaml", ".yml")):
        return {"policy": entry}, entry
    file = resolve(entry, beside)
    if file is None and "/" not in entry:
        file = resolve(f"policies/{entry}.yaml", beside)
    if file is not None and file.is_file():
        raw = _load_settings(file, path, key)
        raw.setdefault("label", file.stem)
        return raw, str(file)
    if entry.endswith((".yaml", ".yml")):
        raise InputError(f'policy file "{entry}" not found{similar_file(entry, beside)}', path=path, key=key)
    return {"policy": entry}, str(path) if path else "--policy"


def _load_settings(file: Path, path: Path | None, key: str) -> dict[str, Any]:
    """The settings of one policy."""
    raw = load_yaml(file)
    if "policies" in raw and "policy" not in raw:
        raise InputError(f"an experiment, no policy; run it: simulate-trace {file}", path=path, key=key)
    return raw


def on_ready_settings(entry: dict[str, Any], beside: Path | None, path: Path | None, key: str) -> dict[str, Any]:
    """`{policy: sarathi-serve, chunk_size: 1024}`: those ready settings, and what the entry says instead."""
    name = entry.get("policy")
    ready = {*setting_names(), *(file.stem for file in experiment_files())}
    if not isinstance(name, str) or name.replace("_", "-") in policy_names() or name not in ready:
        return entry
    file = resolve(f"policies/{name}.yaml", beside)
    assert file is not None, "ready settings are files"
    own = {name: value for name, value in entry.items() if name != "policy"}
    return _load_settings(file, path, key) | {"label": name} | own


def _label(raw: Mapping[str, Any], where: str, name: str, taken: Sequence[str]) -> str:
    given = raw.get("label")
    label = name.rpartition(":")[2] if given is None else str(given)
    # A label's folder lies beside the run's files, so it must not look like one.
    if not re.fullmatch(r"(?!\.)[\w.+@=-]([\w.+@= -]{0,78}[\w.+@=-])?(?<!\.csv|\.png|\.svg)(?<!\.yaml|\.html)", label):
        raise InputError(
            f"label {label!r} names a folder: up to 80 letters, digits, spaces and . _ + - = @",
            path=where,
            key="label",
        )
    if label not in taken:
        return label
    return next(f"{label}-{n}" for n in range(2, len(taken) + 3) if f"{label}-{n}" not in taken)


def complete_options(
    runs: Sequence[PolicyRun], surroundings: Surroundings, folders: tuple[Path, ...]
) -> tuple[PolicyRun, ...]:
    """Every option of every policy spelled out; here a wrong option is found."""
    complete = []
    for run in runs:
        if run.disaggregated:
            complete.append(run)
            continue
        policy = make_policy(run.policy, run.options, surroundings, folders, where=run.source)
        options = {field.name: getattr(policy, field.name) for field in fields(policy) if field.init}  # type: ignore[arg-type]
        complete.append(replace(run, options=options))
    return tuple(complete)
