"""How long an exchange takes: replays of a CUDA graph of many, or rounds launched one by one on a CPU.

Replays are queued without waiting, so that the host's launches do not show and every rank starts the next one when the
exchange before it ends. A sample is a replay's time divided by its exchanges, the mean over the ranks that take part:
one that starts early waits for the others, by as much as it will start late the next time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from profiler.collectives import Exchange, Rank
from profiler.timing import Timing, new_event, quantiles

_HEAD_START_CYCLES = 4_000_000  # some 2 ms, in which the host queues the first replays


@dataclass(frozen=True, slots=True)
class Effort:
    """Samples, those before them that do not count, and exchanges a sample: `few` of more than `large` bytes."""

    repeats: int
    warmups: int
    many: int
    few: int
    large: int

    def calls(self, size: int) -> int:
        """Exchanges a sample. Even, since a send goes back and forth."""
        return self.few if size > self.large else self.many


IN_GRAPHS = Effort(repeats=31, warmups=5, many=40, few=8, large=2**22)
ON_CPU = Effort(repeats=7, warmups=1, many=8, few=2, large=2**18)


def time_exchange(rank: Rank, exchange: Exchange, size: int) -> tuple[Timing, int]:
    """(time of one exchange of `size` bytes, exchanges a sample). Every rank has to call it, and gets the same."""
    import torch
    import torch.distributed as dist

    on_gpu = rank.device.type == "cuda"
    effort = IN_GRAPHS if on_gpu else ON_CPU
    calls = effort.calls(size)
    dist.barrier()
    samples_us = [0.0] * effort.repeats
    if exchange.launch is not None:
        sample = _replays_us if on_gpu else _rounds_us
        rounds = calls // exchange.messages
        samples_us = [us / calls for us in sample(exchange.launch, rounds, effort)]
    total = torch.tensor(samples_us, dtype=torch.float64, device=rank.device)
    dist.all_reduce(total)
    return quantiles((total / exchange.ranks).tolist()), calls


def _replays_us(launch: Callable[[], object], launches: int, effort: Effort) -> list[float]:
    """Microseconds of each replay of a graph of so many launches."""
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):  # connections are made at the first use, which cannot be captured
            launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(launches):
                launch()
        starts, ends = ([new_event() for _ in range(effort.warmups + effort.repeats)] for _ in range(2))
        torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        for start, end in zip(starts, ends, strict=True):
            start.record()
            graph.replay()
            end.record()
        ends[-1].synchronize()
    times_us = [float(start.elapsed_time(end)) * 1e3 for start, end in zip(starts, ends, strict=True)]
    return times_us[effort.warmups :]


def _rounds_us(launch: Callable[[], object], launches: int, effort: Effort) -> list[float]:
    """Microseconds of each round of so many launches, by the host's clock."""
    times_us = []
    for _ in range(effort.warmups + effort.repeats):
        start_ns = time.perf_counter_ns()
        for _ in range(launches):
            launch()
        times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return times_us[effort.warmups :]
