"""Plain mappings into frozen dataclasses, every mistake as one InputError that names the key.

A dataclass is its own schema: field types and `annotated_types` bounds are checked, unknown keys are refused with
the nearest known one. pydantic does the checking; it is imported here only.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from simulator.errors import InputError, nearest

T = TypeVar("T")


@cache
def _adapters(kind: Callable[..., Any]) -> dict[str, "TypeAdapter[Any] | type[Any]"]:
    """A checker for each field of `kind`; the class itself where a field is a dataclass."""
    dataclass = cast(type[Any], kind)
    hints = get_type_hints(dataclass, include_extras=True)
    return {field.name: _adapter(hints[field.name]) for field in fields(dataclass) if field.init}


def _adapter(hint: Any) -> "TypeAdapter[Any] | type[Any]":
    kinds = [hint, *(get_args(hint) if NoneType in get_args(hint) else ())]
    for kind in kinds:
        if isinstance(kind, type) and is_dataclass(kind):  # alone or with None
            return kind
    return TypeAdapter(hint, config=ConfigDict(strict=True))


def parse(kind: Callable[..., T], raw: Mapping[str, Any], *, path: str | Path | None = None, prefix: str = "") -> T:
    """`raw` as a `kind` (a frozen dataclass); `path` and `prefix` go in front of the key in messages.

    Raises InputError for an unknown or missing key, a value of the wrong type or out of bounds, and a ValueError
    that the dataclass raises itself (a rule over several fields).
    """
    for key in raw:
        _require_known(kind, key, path, prefix)
    values = {key: parse_value(kind, key, value, path=path, prefix=prefix) for key, value in raw.items()}
    required = [field.name for field in fields(cast(type[Any], kind)) if field.init and _has_no_default(field)]
    for key in required:
        if key not in values:
            raise InputError("missing", path=path, key=f"{prefix}{key}")
    try:
        return kind(**values)
    except ValueError as error:
        raise InputError(str(error), path=path, key=prefix.rstrip(".") or None) from None


def parse_value(
    kind: Callable[..., Any], key: str, value: Any, *, path: str | Path | None = None, prefix: str = ""
) -> Any:
    """`value` as field `key` of `kind`. Raises InputError for an unknown key, a wrong type, a value out of bounds."""
    _require_known(kind, key, path, prefix)
    adapter = _adapters(kind)[key]
    if isinstance(adapter, type):
        if value is None and NoneType in get_args(get_type_hints(cast(type[Any], kind))[key]):
            return None
        return _parse_nested(adapter, value, path, f"{prefix}{key}")
    member = _member(get_type_hints(cast(type[Any], kind))[key])
    if member is not None:
        return _parse_members(member, value, path, f"{prefix}{key}")
    value = _as_tuples(value)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].replace("Input should be", "should be")
        raise InputError(f"{message}, not {value!r}", path=path, key=f"{prefix}{key}") from None


def _member(hint: Any) -> type[Any] | None:
    """The dataclass of which a field holds a tuple of any length; None for other fields."""
    inside = get_args(hint)
    if get_origin(hint) is tuple and len(inside) == 2 and inside[1] is Ellipsis and is_dataclass(inside[0]):
        return cast(type[Any], inside[0])
    return None


def _parse_members(kind: type[Any], value: Any, path: str | Path | None, key: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError("should be a list of mappings", path=path, key=key)
    return tuple(_parse_nested(kind, each, path, f"{key}[{place}]") for place, each in enumerate(value))


def _as_tuples(value: Any) -> Any:
    """Lists, and lists in them, as tuples: frozen dataclasses hold these, YAML has lists only."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _require_known(kind: Callable[..., Any], key: str, path: str | Path | None, prefix: str) -> None:
    adapters = _adapters(kind)
    if key not in adapters:
        raise InputError(f"unknown key; {nearest(str(key), adapters, 'keys')}", path=path, key=f"{prefix}{key}")


def _parse_nested(kind: type[Any], value: Any, path: str | Path | None, key: str) -> Any:
    if not isinstance(value, Mapping):
        raise InputError(f"should be a mapping, not {value!r}", path=path, key=key)
    return parse(kind, value, path=path, prefix=f"{key}.")


def _has_no_default(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
