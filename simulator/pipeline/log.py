"""What is logged of a pipeline beside `RunLog`: when each stage worked, and why the first had nothing to do.

A *micro-batch* is one iteration's batch on its way through the stages. Times are integer nanoseconds.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from simulator.trace import Ints

FULL, DEPENDENCY, DRAIN, NOT_READY, ARRIVALS, HOST = range(6)
"""Why no micro-batch is planned: as many as may be are under way; all requests are in those under way, and some of them
will decode again; all of them are, and all will have ended; the policy schedules none of those that could run; there is
no request; the engine's host is at work."""


class PipelineLog:
    """Columns that grow: those of stages have one value a stage for each micro-batch."""

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.streams = array("h")
        self.start_ns = array("q")
        self.end_ns = array("q")
        self.sent_ns = array("q")
        """When the activations are at the next stage, of the last stage when its output is there."""
        self.planned_ns = array("q")
        self.depends_ns = array("q")
        """Until when the first stage waits for tokens that the last one samples; 0 if for none."""
        self.followed = array("b")
        """Whether every place between the micro-batch waited for and this one was taken by another."""
        self.states = array("q")
        """(time, why nothing is planned from then on), again and again."""
        self.chunks = array("q")
        """(request, iteration) of prompt chunks."""

    def wait(self, now_ns: int, why: int) -> None:
        """From now on nothing is planned."""
        states = self.states
        if not states or states[-1] != why:
            states.append(max(now_ns, states[-2]) if states else now_ns)
            states.append(why)

    def columns(self) -> "StageTimes":
        """Everything logged, as arrays; they are views, so that a long run is not held twice."""
        start, end, sent = (
            _view(column).reshape(-1, self.stages) for column in (self.start_ns, self.end_ns, self.sent_ns)
        )
        states, chunks = _view(self.states).reshape(-1, 2), _view(self.chunks).reshape(-1, 2)
        return StageTimes(
            start,
            end,
            sent,
            _view(self.planned_ns),
            _view(self.depends_ns),
            _view(self.followed).astype(bool),
            states[:, 0],
            states[:, 1],
            chunks[:, 0],
            chunks[:, 1],
        )


def _view(column: "array[int]") -> Ints:
    return np.frombuffer(column, column.typecode) if column else np.empty(0, column.typecode)


@dataclass(frozen=True)
class StageTimes:
    """The log of a pipeline as arrays: `start_ns`, `end_ns` and `sent_ns` of (micro-batches, stages), the others of
    micro-batches, states, or chunks; see `PipelineLog`."""

    start_ns: Ints
    end_ns: Ints
    sent_ns: Ints
    planned_ns: Ints
    depends_ns: Ints
    followed: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    state_ns: Ints
    state: Ints
    chunk_request: Ints
    chunk_iteration: Ints

    @property
    def stages(self) -> int:
        """How many there are."""
        return int(self.start_ns.shape[1])
