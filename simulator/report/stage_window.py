"""Which short stretch of a long run to show of its pipelines: one that is most like the rest."""

from collections.abc import Sequence

import numpy as np

from simulator.pipeline.log import StageTimes
from simulator.report.axes import Span
from simulator.trace import Floats

MICRO_BATCHES = 32  # aimed at
LONG_ONES = 4  # of the micro-batches that take most of the time
MOST = 200  # micro-batches of any policy, still wider than a few pixels
CANDIDATES = 201


def typical_stretch(pipelines: Sequence[StageTimes]) -> Span | None:
    """A few dozens of micro-batches in the middle half of the time in which all pipelines work; None without any work.

    The share of it that their stages are busy comes closest to that of their runs, waiting for arrivals left out: a
    run has quieter and busier moments. Of equals, it is the one nearest the middle.
    """
    worked = [times for times in pipelines if len(times.start_ns)]
    if not worked:
        return None
    begin, end = _together(worked)
    length = min(_length_s(worked), end - begin)
    starts = begin + (end - begin - length) * np.linspace(0.25, 0.75, CANDIDATES)
    starts = starts[np.argsort(np.abs(np.arange(CANDIDATES) - CANDIDATES // 2), kind="stable")]
    unlike = np.zeros(CANDIDATES)
    for times in worked:
        done = _busy_s(times, starts + length) - _busy_s(times, starts)
        typical = float((times.end_ns - times.start_ns).sum()) / 1e9 / _under_way_s(times)
        unlike += np.abs(done / length - typical) / times.stages
    start = float(starts[int(np.argmin(unlike.round(6)))])
    return Span(start, start + length)


def busy_share(times: StageTimes, shown: Span | None) -> float:
    """The part of `shown`, or of the time from the first to the last work of each stage, that the stages are busy."""
    if shown is None:
        return float((times.end_ns - times.start_ns).sum() / (times.end_ns[-1] - times.start_ns[0]).sum())
    done = _busy_s(times, np.array([shown.start_s, shown.end_s]))
    return float(done[1] - done[0]) / (shown.end_s - shown.start_s) / times.stages


def _together(pipelines: Sequence[StageTimes]) -> tuple[float, float]:
    """From when to when all are at work, or any if never all."""
    starts = [times.start_ns[0, 0] / 1e9 for times in pipelines]
    ends = [times.end_ns[-1, 0] / 1e9 for times in pipelines]
    return (max(starts), min(ends)) if max(starts) < min(ends) else (min(starts), max(ends))


def _length_s(pipelines: Sequence[StageTimes]) -> float:
    """So long that micro-batches are seen that are long, and those that are short can be told apart."""
    periods = [_under_way_s(times) / len(times.start_ns) for times in pipelines]
    lengths = [
        max(MICRO_BATCHES * period, LONG_ONES * _long_s(times))
        for times, period in zip(pipelines, periods, strict=True)
    ]
    return min(float(np.median(lengths)), MOST * min(periods))


def _long_s(times: StageTimes) -> float:
    """The mean time of a micro-batch on a stage, as met at any moment of work."""
    took = (times.end_ns - times.start_ns) / 1e9
    return float((took**2).sum() / took.sum())


def _under_way_s(times: StageTimes) -> float:
    """How long any micro-batch is between the start of the first stage and the end of the last."""
    starts, ends = times.start_ns[:, 0], times.end_ns[:, -1]
    pauses = np.maximum(starts[1:] - ends[:-1], 0)
    return float(ends[-1] - starts[0] - pauses.sum()) / 1e9


def _busy_s(times: StageTimes, at_s: Floats) -> Floats:
    """Seconds of work of all stages before each time."""
    total = np.zeros(len(at_s))
    for stage in range(times.stages):
        starts, ends = times.start_ns[:, stage], times.end_ns[:, stage]
        done = np.append(0, np.cumsum(ends - starts))
        edges = np.column_stack([starts, ends]).ravel()
        total += np.interp(at_s * 1e9, edges, np.column_stack([done[:-1], done[1:]]).ravel()) / 1e9
    return total
