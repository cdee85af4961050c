"""How long one call of an operator takes on the device, as it would inside a captured forward pass.

On a GPU some calls in a row are captured into a CUDA graph, which takes the host's launch time out, and the
graph's replays are timed with CUDA events. The calls of one graph use different weights or KV pages, together
several times the L2 cache, because a forward pass meets each layer's weights and cache cold. One sample is a
replay's time divided by its calls; the result is their median with the 10 % and 90 % quantiles. On a CPU the
same calls are timed with the host's clock.

Large matrix products draw more power than a GPU is allowed, so after some 50 ms it lowers its clocks, and
their time grows by up to a fifth. In an engine they take turns with work that draws less: attention, other
kernels, steps of decodes, the host's pauses. So before each replay the GPU rests, in a kernel that only waits,
for half as long as the replay takes; then clocks are steady (docs/decisions/0006). Replays and rests are queued
without waiting.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one call in microseconds: median and quantiles over `repeats` samples."""

    time_us: float
    p10_us: float
    p90_us: float
    repeats: int

    @property
    def spread(self) -> float:
        """Width from the 10 % to the 90 % quantile, as a fraction of the median."""
        return (self.p90_us - self.p10_us) / self.time_us

    def plus(self, more_us: float) -> "Timing":
        """The same, `more_us` longer."""
        return Timing(self.time_us + more_us, self.p10_us + more_us, self.p90_us + more_us, self.repeats)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two kinds of calls timed in turn, at the same clocks; `growth` is the median of second / first - 1."""

    first: Timing
    second: Timing
    growth: float


class Timer(Protocol):
    """What the sweep needs of a clock."""

    def time(self, calls: Sequence[Call]) -> Timing:
        """Time of one of `calls`, which do the same work on different buffers."""
        ...

    def compare(self, first: Sequence[Call], second: Sequence[Call]) -> Comparison:
        """Times of one of `first` and of one of `second`, sampled in turn."""
        ...


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to warm up and measure; a point with a spread over `noisy_spread`, `longer` times as long.

    `rest`: the GPU's rest before each replay, as a share of the replay's time.
    """

    warmup_ms: float = 12.0
    measure_ms: float = 30.0
    least_repeats: int = 7
    most_repeats: int = 40
    rest: float = 0.5
    graph_us: float = 2500.0
    most_calls: int = 256
    noisy_spread: float = 0.02
    longer: int = 3

    def repeats(self, once_ms: float, times: int = 1) -> int:
        """Samples of `once_ms` each, rests not counted, for `times` the time to measure."""
        wanted = int(np.ceil(times * self.measure_ms / max(once_ms, 1e-6)))
        return min(max(wanted, self.least_repeats), times * self.most_repeats)


QUICK = Effort(measure_ms=15.0, least_repeats=5, noisy_spread=0.04)
ON_CPU = Effort(warmup_ms=0.0, measure_ms=2.0, least_repeats=3, most_repeats=7, noisy_spread=float("inf"))

_SLEEP_CYCLES_PER_MS = 1_800_000  # of the SM clock, about


def quantiles(samples_us: Sequence[float]) -> Timing:
    """The timing of these samples of one call."""
    p10, median, p90 = np.quantile(np.asarray(samples_us), [0.1, 0.5, 0.9])
    return Timing(float(median), float(p10), float(p90), len(samples_us))


def settled(measure: Callable[[int], Timing], effort: Effort) -> Timing:
    """`measure(1)`, and where that is noisy `measure(longer)`."""
    first = measure(1)
    return first if first.spread <= effort.noisy_spread else measure(effort.longer)


def _comparison(firsts_us: Sequence[float], seconds_us: Sequence[float]) -> Comparison:
    growth = float(np.median(np.asarray(seconds_us) / np.asarray(firsts_us))) - 1
    return Comparison(quantiles(firsts_us), quantiles(seconds_us), growth)


@dataclass(frozen=True, slots=True)
class CpuTimer:
    """Times with the host's clock, for trying the program without a GPU."""

    effort: Effort = ON_CPU

    def time(self, calls: Sequence[Call]) -> Timing:
        """One sample a round over `calls`, after a round to warm up."""
        once_ms = self._round_ms(calls)
        repeats = self.effort.repeats(once_ms)
        return quantiles([self._round_ms(calls) * 1e3 / len(calls) for _ in range(repeats)])

    def compare(self, first: Sequence[Call], second: Sequence[Call]) -> Comparison:
        """A round over `first`, one over `second`, and so on, after a round of both to warm up."""
        repeats = self.effort.repeats(self._round_ms(first) + self._round_ms(second))
        samples = [[self._round_ms(calls) * 1e3 / len(calls) for calls in (first, second)] for _ in range(repeats)]
        return _comparison(*zip(*samples, strict=True))

    @staticmethod
    def _round_ms(calls: Sequence[Call]) -> float:
        start_ns = time.perf_counter_ns()
        for call in calls:
            call()
        return (time.perf_counter_ns() - start_ns) / 1e6


def new_event() -> "torch.cuda.Event":
    """An event that takes the time."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _new_stream() -> Any:
    import torch

    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class CudaTimer:
    """Times with CUDA events over replays of a CUDA graph, on the current device.

    All launches go to one stream, so that cuBLAS has its workspace there before the first capture.
    """

    effort: Effort = field(default_factory=Effort)
    stream: Any = field(default_factory=_new_stream)

    def time(self, calls: Sequence[Call]) -> Timing:
        """Capture `calls`, in turn and as often as makes a graph of useful length, and time its replays."""
        import torch

        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            captured = self._captured(calls)
            return settled(lambda times: self._measure(captured, times), self.effort)

    def compare(self, first: Sequence[Call], second: Sequence[Call]) -> Comparison:
        """Replays of a graph of `first` and one of `second` in turn; every other pair begins with `second`."""
        import torch

        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graphs = [self._captured(calls) for calls in (first, second)]
            pair_ms = sum(graph.once_ms for graph in graphs)
            warmups = self._warmups(pair_ms)
            pairs = warmups + self.effort.repeats(pair_ms)
            order = [graphs[(place + pair) % 2] for pair in range(pairs) for place in (0, 1)]
            samples_ms = self._replay_ms(order, self.effort.rest * pair_ms / 2)
        samples: dict[int, list[float]] = {0: [], 1: []}
        for place, (graph, sample) in enumerate(zip(order, samples_ms, strict=True)):
            if place >= 2 * warmups:
                samples[graphs.index(graph)].append(sample * 1e3 / graph.calls)
        return _comparison(samples[0], samples[1])

    def _captured(self, calls: Sequence[Call]) -> "_Captured":
        in_graph = self._calls_in_graph(len(calls), self._eager_us(calls))
        captured = self._capture(calls, in_graph)
        enough = self._calls_in_graph(len(calls), captured.once_ms * 1e3 / in_graph)
        if enough >= 2 * in_graph:  # launched from Python, the calls took longer than they take the device
            captured = self._capture(calls, enough)
        return captured

    def _eager_us(self, calls: Sequence[Call]) -> float:
        """Time of a call launched from Python, the second time round, after compilation."""
        some = calls[:8]
        for call in some:
            call()
        start, end = new_event(), new_event()
        start.record()
        for call in some:
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / len(some)

    def _calls_in_graph(self, distinct: int, eager_us: float) -> int:
        """Enough that a graph's start, some microseconds, does not show; whole rounds over `distinct`."""
        wanted = int(np.ceil(self.effort.graph_us / max(eager_us, 1e-3)))
        rounds = -(-min(wanted, self.effort.most_calls) // distinct)
        return distinct * rounds

    def _capture(self, calls: Sequence[Call], in_graph: int) -> "_Captured":
        import torch

        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for call in islice(cycle(calls), in_graph):
                call()
        captured = _Captured(graph, in_graph, 0.0)
        return replace(captured, once_ms=self._replay_ms([captured] * 2)[-1])

    def _warmups(self, once_ms: float) -> int:
        return max(1, int(np.ceil(self.effort.warmup_ms / ((1 + self.effort.rest) * once_ms))))

    def _measure(self, captured: "_Captured", times: int) -> Timing:
        once_ms = captured.once_ms
        warmups = self._warmups(once_ms)
        replays = [captured] * (warmups + self.effort.repeats(once_ms, times))
        samples_ms = self._replay_ms(replays, self.effort.rest * once_ms)
        return quantiles([sample * 1e3 / captured.calls for sample in samples_ms[warmups:]])

    def _replay_ms(self, replays: "Sequence[_Captured]", rest_ms: float = 0.0) -> list[float]:
        """Milliseconds of each of `replays`, queued behind whatever is running, each after a rest."""
        import torch

        cycles = int(rest_ms * _SLEEP_CYCLES_PER_MS)
        starts, ends = [new_event() for _ in replays], [new_event() for _ in replays]
        for captured, start, end in zip(replays, starts, ends, strict=True):
            if cycles:
                torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            start.record()
            captured.graph.replay()
            end.record()
        ends[-1].synchronize()
        return [float(start.elapsed_time(end)) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Captured:
    """A CUDA graph of so many `calls`, and how long a replay took right after the capture."""

    graph: "torch.cuda.CUDAGraph"
    calls: int
    once_ms: float


def warm_gpu(seconds: float) -> None:
    """Keep the GPU's matrix units busy for `seconds`, so that the clocks are those of a loaded GPU."""
    import torch

    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(50):
            torch.mm(left, right)
        torch.cuda.synchronize()
