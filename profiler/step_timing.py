"""How long a whole step takes: the GPU's time by a CUDA graph of it or eagerly, and the host's to launch it.

The protocol is that of `profiler.timing`: between replays the GPU idles for half a step's time, so that its power limit
lowers the clocks within a long step alone.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from profiler.timing import ON_CPU, Call, CpuTimer, CudaTimer, Effort, Timing, new_event, quantiles, settled

STEP = Effort(warmup_ms=40, measure_ms=80, least_repeats=5, most_repeats=40, rest=0.5, graph_us=1.0, noisy_spread=0.05)
MOST_LAUNCHES = 3
LAUNCH_MS = 30.0


@dataclass(frozen=True, slots=True)
class StepTiming:
    """GPU time of a step, and microseconds of the host to launch it eagerly, without waiting for the GPU."""

    gpu: Timing
    host_us: float


class StepTimer(Protocol):
    """What measuring batches needs of a clock."""

    def time_step(self, step: Call) -> StepTiming:
        """Both times of a step."""
        ...


@dataclass(frozen=True, slots=True)
class CpuStepTimer:
    """On a CPU a launch is the work itself: both times are the same."""

    effort: Effort = ON_CPU

    def time_step(self, step: Call) -> StepTiming:
        """Both times of a step."""
        timing = CpuTimer(self.effort).time([step])
        return StepTiming(timing, timing.time_us)


@dataclass(frozen=True, slots=True)
class CudaStepTimer(CudaTimer):
    """Captures the step once and replays it; with `eager` it launches each repeat from Python instead.

    Few runs besides those that are measured: a step of 8192 tokens takes a fifth of a second.
    """

    effort: Effort = STEP
    eager: bool = False

    def time_step(self, step: Call) -> StepTiming:
        """Both times of a step."""
        import torch

        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            step()  # compiles kernels, chooses matrix products
            host_us, once_ms = self._launch(step)
            if self.eager:
                return StepTiming(self._time_eagerly(step, once_ms), host_us)
            captured = self._capture([step], 1)
            timing = settled(lambda times: self._measure(captured, times), self.effort)
        return StepTiming(timing, host_us)

    def _launch(self, step: Call) -> tuple[float, float]:
        """(microseconds of the host to launch the step, milliseconds of the GPU), medians of a few.

        Of one where the GPU takes long.
        """
        launches = [self._launch_once(step)]
        while len(launches) < MOST_LAUNCHES and sum(gpu_ms for _, gpu_ms in launches) < LAUNCH_MS:
            launches.append(self._launch_once(step))
        host_us, gpu_ms = zip(*launches, strict=True)
        return median(host_us), median(gpu_ms)

    def _launch_once(self, step: Call) -> tuple[float, float]:
        """A launch after the GPU has come to rest, and the time from its first kernel to its last."""
        self.stream.synchronize()
        start, end = new_event(), new_event()
        start.record()
        launch_ns = time.perf_counter_ns()
        step()
        host_us = (time.perf_counter_ns() - launch_ns) / 1e3
        end.record()
        end.synchronize()
        return host_us, float(start.elapsed_time(end))

    def _time_eagerly(self, step: Call, once_ms: float) -> Timing:
        """From the first kernel's start to the last one's end, pauses in which the GPU waits for the host included."""
        for _ in range(max(1, round(self.effort.warmup_ms / max(once_ms, 1e-3)))):
            self._launch_once(step)

        def measure(times: int) -> Timing:
            repeats = self.effort.repeats(once_ms, times)
            return quantiles([self._launch_once(step)[1] * 1e3 for _ in range(repeats)])

        return settled(measure, self.effort)
