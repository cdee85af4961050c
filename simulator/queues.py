"""Waiting queues: first come first served, or sorted by a policy's key. Every operation the scheduler needs in an
ordinary step is O(1)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from simulator.core import Request


class WaitingQueue(Protocol):
    """Requests that wait, head first."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def append(self, request: Request) -> None:
        """A new arrival."""

    def put_back(self, request: Request) -> None:
        """A preempted request."""

    def remove(self, request: Request) -> None:
        """An admitted request, O(1) at the head."""


class FcfsQueue(OrderedDict[Request, None]):
    """Arrivals at the tail, preempted requests at the head (the last preempted is first)."""

    # An OrderedDict, not a dict: finding the first key of a dict is O(n) after n removals at its front. Inherited, not
    # held: the length is asked for twice a step.
    __slots__ = ()

    def append(self, request: Request) -> None:
        self[request] = None

    def put_back(self, request: Request) -> None:
        self[request] = None
        self.move_to_end(request, last=False)

    remove = OrderedDict.__delitem__


class SortedQueue:
    """Smallest key first; a preempted request goes back to its place. Insertion is one bisection and one memmove."""

    __slots__ = ("_descending", "_key")

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._descending: list[tuple[Any, Request]] = []

    def __len__(self) -> int:
        return len(self._descending)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in reversed(self._descending))

    def append(self, request: Request) -> None:
        insort(self._descending, (self._sort_key(request), request), key=_first)

    put_back = append

    def remove(self, request: Request) -> None:
        place = bisect_left(self._descending, self._sort_key(request), key=_first)
        while self._descending[place][1] is not request:
            place += 1
        del self._descending[place]

    def _sort_key(self, request: Request) -> Any:
        return _Reversed((self._key(request), request.index))


class _Reversed:
    """A key that sorts the other way round, so that the head of the queue is the cheap end of the list."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.key < self.key)


def _first(entry: tuple[Any, Request]) -> Any:
    return entry[0]
