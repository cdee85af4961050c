"""Where requests come from: one process that puts the next request of a trace in the queue when its time comes."""

from collections.abc import Generator, Iterator
from typing import Protocol

import simpy
from simpy.events import URGENT

from simulator.core import Request
from simulator.trace import Trace

_SLICE = 65536


class Receiver(Protocol):
    """Who is handed the requests."""

    def receive(self, request: Request) -> None: ...

    def no_more_arrivals(self) -> None: ...


def requests_of(trace: Trace) -> Iterator[Request]:
    """The trace's requests one by one; a slice of the arrays is unpacked at a time."""
    for start in range(0, len(trace), _SLICE):
        stop = start + _SLICE
        columns = [trace.arrival_ns[start:stop].tolist(), trace.prompt_tokens[start:stop].tolist()]
        columns.append(trace.output_tokens[start:stop].tolist())
        if trace.priority is not None:
            columns.append(trace.priority[start:stop].tolist())
        for index, values in enumerate(zip(*columns, strict=True), start):
            yield Request(index, *values)


def replay(env: simpy.Environment, requests: Iterator[Request], receiver: "Receiver") -> Generator[simpy.Event]:
    """Hand each request to `receiver` at its arrival time, before any step that starts or ends at that nanosecond."""
    for request in requests:
        if request.arrival_ns > env.now:
            arrival = simpy.Event(env)
            arrival._ok, arrival._value = True, None
            env.schedule(arrival, URGENT, request.arrival_ns - env.now)
            yield arrival
        receiver.receive(request)
    receiver.no_more_arrivals()
