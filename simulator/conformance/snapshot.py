"""What a policy can reach and what it decided, as plain values that can be compared."""

from array import array
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from simulator.core import Batch, Request, View

Snapshot = tuple[tuple[Any, ...], tuple[object, ...], tuple[tuple[str, object], ...]]
"""Slots of each request, of the view, and the policy's attributes."""

_slots_of_request = attrgetter(*Request.__slots__)
_OF_VIEW = [name for name in View.__slots__ if name != "memory"]
"""A planner may change a memory of its own; vLLM's is looked at as `prefixes`."""


def snapshot(view: View | None, requests: Sequence[Request], policy: object) -> Snapshot:
    """Everything that a policy could change. O(requests + blocks of a prefix cache)."""
    return (
        tuple(map(_slots_of_request, requests)),
        () if view is None else tuple([_plain(getattr(view, name)) for name in _OF_VIEW]),
        tuple(_attributes(policy).items()),
    )


def first_change(before: Snapshot, after: Snapshot, requests: Sequence[Request]) -> str | None:
    """The first attribute that differs, in words; None if none does. An attribute of the policy may be new."""
    if before == after:
        return None
    for request, old, new in zip(requests, before[0], after[0], strict=True):
        for name, was, now in zip(Request.__slots__, old, new, strict=True):
            if was != now:
                return _change(f"`{name}` of {request!r}", was, now)
    for name, was, now in zip(_OF_VIEW, before[1], after[1], strict=False):
        if was != now:
            return _change(f"`view.{name}`", was, now)
    own = dict(after[2])
    for name, was in before[2]:
        if was != own.get(name):
            return _change(f"its own `{name}`", was, own.get(name))
    return None


def _change(what: str, was: object, now: object) -> str:
    return f"{what} from {was} to {now}" if isinstance(was, int) and isinstance(now, int) else what


def decision(batch: Batch) -> dict[str, object]:
    """A batch as plain values, requests by their index; equal for batches that run the same in the same order."""
    decodes = batch.decodes
    decided: dict[str, object] = {"decodes": None if decodes is None else sorted(request.index for request in decodes)}
    for name in _OTHER_PARTS:
        part = getattr(batch, name)
        decided[name] = [_index(item) for item in part] if part else ()
    return decided


_OTHER_PARTS = [name for name in Batch.__slots__ if name not in ("decodes", "holds")]


def in_words(decided: object) -> str:
    """A decision, or another answer of a policy, for a message."""
    if not isinstance(decided, dict):
        return repr(decided)
    decodes = decided["decodes"]
    listed = {name: part for name, part in decided.items() if part and name != "decodes"}
    listed["decodes"] = "all" if decodes is None else decodes
    return ", ".join(f"{name} {part}" for name, part in listed.items())


def _index(item: object) -> object:
    if isinstance(item, tuple):
        return tuple(_index(each) for each in item)
    return item.index if isinstance(item, Request) else item


def _plain(value: object) -> object:
    """`value` such that later changes do not reach it. Requests stand for themselves, unknown objects too."""
    kind = type(value)
    if kind is int or kind is Request or value is None:
        return value
    if isinstance(value, dict):
        return (*value, *(_plain(held) for held in value.values() if held is not None))
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, list | tuple | deque | array):
        return tuple([each if type(each) is int else _plain(each) for each in value])
    if kind.__module__.startswith("simulator."):
        return tuple(_attributes(value).items())
    return value


def _attributes(owner: object) -> dict[str, object]:
    slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*(name for name in slots if hasattr(owner, name)), *getattr(owner, "__dict__", ())]
    return {name: _plain(getattr(owner, name)) for name in names}
