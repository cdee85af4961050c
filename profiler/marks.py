"""Marks in what a device is given to do, the time between them, and steps that take the host no time to launch."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from profiler.timing import Call, new_event

if TYPE_CHECKING:
    import torch


class HostMarks:
    """On a CPU work is done when its call returns."""

    def mark(self) -> int:
        """The host's time in nanoseconds."""
        return time.perf_counter_ns()

    def wait(self, mark: int) -> None:
        """It is reached already."""

    def seconds(self, first: int, second: int) -> float:
        """From one mark to another."""
        return (second - first) / 1e9


class CudaMarks:
    """Events in the current stream."""

    def mark(self) -> "torch.cuda.Event":
        """An event after all that was launched so far."""
        event = new_event()
        event.record()
        return event

    def wait(self, mark: "torch.cuda.Event") -> None:
        """Until the GPU has reached it."""
        mark.synchronize()

    def seconds(self, first: "torch.cuda.Event", second: "torch.cuda.Event") -> float:
        """From one to another, to half a microsecond where they are less than some seconds apart."""
        return float(first.elapsed_time(second)) / 1e3


def captured(step: Call, stream: "torch.cuda.Stream") -> Callable[[], None]:
    """A replay of a CUDA graph of `step`, on `stream`, which has to be current."""
    import torch

    step()  # compiles kernels, chooses matrix products
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()

    def replay(_alive: Call = step) -> None:  # the graph reads the step's arrays
        graph.replay()

    return replay
