"""Policies by name: a module of the `policies` package, or a user's `package.module:Class`.

A policy class is a frozen dataclass; its fields are the options of the policy's YAML. Loading a user's policy imports
their module, which runs its code.
"""

import importlib
import re
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from simulator.bundled import bundled_files
from simulator.errors import InputError, nearest
from simulator.policy import Policy, PolicyBase, Surroundings
from simulator.validation import parse


def policy_names() -> list[str]:
    """Policies that ship with the project."""
    return sorted(path.stem.replace("_", "-") for path in bundled_files("policies", ".", "[!_]*.py"))


def setting_names() -> list[str]:
    """Ready-made settings, `policies/NAME.yaml`; most have the name of their policy."""
    return sorted(path.stem.replace("_", "-") for path in setting_files())


def setting_files() -> list[Path]:
    """The files of ready-made settings."""
    return [path for path in bundled_files("policies", ".", "*.yaml") if not _compares(path)]


def experiment_files() -> list[Path]:
    """The experiments beside them, which compare policies: they are run, not named as a policy."""
    return [path for path in bundled_files("policies", ".", "*.yaml") if _compares(path)]


def _compares(path: Path) -> bool:
    return re.search("^policies:", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def policy_class(name: str, folders: tuple[Path, ...] = (), where: str | None = None) -> type[PolicyBase]:
    """The class behind a policy's name; `folders` are searched first for a user's module.

    Raises InputError for an unknown name, a module that cannot be imported, and a class that is no policy.
    """
    if ":" in name:
        return _users_class(name, folders, where)
    module_name = name.replace("-", "_")
    if module_name.replace("_", "-") not in policy_names():
        hint = nearest(name, {*policy_names(), *setting_names()}, "policies")
        raise InputError(f'unknown policy "{name}"; {hint}, or package.module:Class', path=where, key="policy")
    module = importlib.import_module(f"policies.{module_name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, PolicyBase) and value.__module__ == module.__name__
    ]
    assert len(found) == 1, f"policies/{module_name}.py defines one policy class"
    return found[0]


def _users_class(name: str, folders: tuple[Path, ...], where: str | None) -> type[PolicyBase]:
    module_name, _, class_name = name.partition(":")
    with _search_first(folders):
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InputError(
                f'cannot import the module of policy "{name}": {error}', path=where, key="policy"
            ) from None
        except (Exception, SystemExit) as error:  # whatever a user's module does while it is imported
            problem = f"{type(error).__name__}: {error}"
            raise InputError(
                f'importing the module of policy "{name}" failed: {problem}', path=where, key="policy"
            ) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        own = [key for key, value in vars(module).items() if _defines_plan(value)]
        raise InputError(
            f'module {module_name} has no "{class_name}"; {nearest(class_name, own, "policies there")}',
            path=where,
            key="policy",
        )
    wrong = _no_policy(kind)
    if wrong:
        raise InputError(
            f'"{name}" is not a policy: it {wrong}; a policy is a frozen dataclass that inherits'
            " simulator.policy.PolicyBase and has plan(view)",
            path=where,
            key="policy",
        )
    return kind  # type: ignore[no-any-return]


def _defines_plan(value: object) -> bool:
    return isinstance(value, type) and value is not PolicyBase and hasattr(value, "plan")


def _no_policy(kind: Any) -> str | None:
    """What keeps a user's object from being a policy, or None."""
    if not isinstance(kind, type):
        return "is no class"
    if not issubclass(kind, PolicyBase):
        return "does not inherit PolicyBase"
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        return "is no frozen dataclass: put @dataclass(frozen=True) before it"
    if kind.plan is PolicyBase.plan and kind.start is PolicyBase.start:
        return "has no plan(view)"
    for name in _PROPERTIES:
        if isinstance(getattr(kind, name, None), FunctionType):
            return f"has a method {name}, which must be a property or an attribute: put @property before it"
    return None


_PROPERTIES = ("promises", "model_length", "steps_in_flight", "caches_prefixes", "null_blocks", "block_size")


@contextmanager
def _search_first(folders: tuple[Path, ...]) -> Any:
    added = [str(folder) for folder in folders]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)


def make_policy(
    name: str,
    options: Mapping[str, Any],
    surroundings: Surroundings,
    folders: tuple[Path, ...] = (),
    where: str | None = None,
) -> Policy:
    """The policy with these options, the rest at their defaults for this GPU and model. Raises InputError."""
    kind = policy_class(name, folders, where)
    defaults = kind.defaults_for(surroundings, options)
    return parse(kind, {**defaults, **options}, path=where)


def policy_options(kind: type[PolicyBase]) -> dict[str, Any]:
    """Option names and their defaults (None where the default depends on GPU or model)."""
    return {
        field.name: field.default if field.default is not MISSING else None
        for field in fields(kind)  # type: ignore[arg-type]
        if field.init
    }
