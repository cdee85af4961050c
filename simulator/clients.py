"""Where requests come from: one process that puts the next request of a trace in the queue when its time comes."""

from collections.abc import Generator, Hashable, Iterator, Sequence
from math import inf
from typing import Protocol, overload

import simpy
from simpy.events import URGENT

from simulator.core import Request
from simulator.trace import Trace

_SLICE = 65536


class Receiver(Protocol):
    """Who is handed the requests; told when the next comes before it does."""

    next_arrival_ns: float

    def receive(self, request: Request) -> None: ...

    def no_more_arrivals(self) -> None: ...


def requests_of(trace: Trace, block_size: int = 16, prefix_block_size: int = 16) -> Iterator[Request]:
    """The trace's requests one by one; a slice of the arrays is unpacked at a time.

    A trace's `prefix_ids`, one per `prefix_block_size` tokens, become the keys of blocks of `block_size` tokens; one of
    the two sizes must be a multiple of the other.
    """
    if trace.prefix_ids is None:
        return _bare_requests(trace)
    return _with_keys(_bare_requests(trace), trace.prefix_ids, block_size, prefix_block_size)


def _with_keys(
    requests: Iterator[Request], prefix_ids: Sequence[Sequence[int]], block_size: int, prefix_block_size: int
) -> Iterator[Request]:
    for request in requests:
        ids = prefix_ids[request.index]
        request.keys = block_keys(ids, request.prompt_tokens, block_size, prefix_block_size)
        yield request


def block_keys(ids: Sequence[int], prompt_tokens: int, block_size: int, prefix_block_size: int) -> Sequence[Hashable]:
    """Keys of the prompt's full blocks. The ids are chained: each stands for its tokens and all before them."""
    full = prompt_tokens // block_size
    if block_size % prefix_block_size == 0:
        every = block_size // prefix_block_size
        return ids[every - 1 : full * every : every]
    parts = prefix_block_size // block_size
    return PartKeys(ids, parts, min(full, len(ids) * parts))


class PartKeys(Sequence[Hashable]):
    """Keys of `length` blocks, `parts` of them to each id. Made when asked for: they are as many as tokens at worst."""

    __slots__ = ("_ids", "_length", "_parts")

    def __init__(self, ids: Sequence[int], parts: int, length: int) -> None:
        self._ids, self._parts, self._length = ids, parts, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Hashable: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Hashable]: ...

    def __getitem__(self, place: int | slice) -> Hashable | Sequence[Hashable]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(self._length))]
        if not 0 <= place < self._length:
            raise IndexError(place)
        return self._ids[place // self._parts], place % self._parts


def _bare_requests(trace: Trace) -> Iterator[Request]:
    for start in range(0, len(trace), _SLICE):
        stop = start + _SLICE
        columns = [trace.arrival_ns[start:stop].tolist(), trace.prompt_tokens[start:stop].tolist()]
        columns.append(trace.output_tokens[start:stop].tolist())
        if trace.priority is not None:
            columns.append(trace.priority[start:stop].tolist())
        for index, values in enumerate(zip(*columns, strict=True), start):
            yield Request(index, *values)


def replay(
    env: simpy.Environment, requests: Iterator[Request], receiver: "Receiver", later_ns: int = 0
) -> Generator[simpy.Event]:
    """Hand each request to `receiver` `later_ns` after its arrival, before any step that starts or ends at that
    nanosecond."""
    now = env.now
    for request in requests:
        arrival_ns = request.arrival_ns + later_ns
        if arrival_ns > now:
            arrival = simpy.Event(env)
            arrival._ok, arrival._value = True, None
            env.schedule(arrival, URGENT, arrival_ns - now)
            receiver.next_arrival_ns = arrival_ns
            yield arrival
            now = arrival_ns
        receiver.receive(request)
    receiver.next_arrival_ns = inf
    receiver.no_more_arrivals()
