"""Readings of exchanges that follow the alpha-beta model exactly, for tests."""

from profiler.network_rows import NCCL, Reading
from profiler.timing import Timing


def reading(exchange: str, size: int, time_us: float, kernel: str = NCCL, ranks: int = 2) -> Reading:
    """One reading, its quantiles a tenth away."""
    timing = Timing(time_us, 0.9 * time_us, 1.1 * time_us, 31)
    return Reading(exchange, kernel, 2 if exchange == "send" else ranks, size, timing, 40)


def by_model(
    sizes: list[int], latency_us: float, gigabytes_per_s: float, send_us: float, ranks: int = 2
) -> list[Reading]:
    """All-reduces of a ring and sends of these sizes; a send's latency is its own."""
    rounds, share = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    us = {size: size / gigabytes_per_s / 1e3 for size in sizes}
    all_reduces = [reading("all_reduce", size, latency_us * rounds + share * us[size], ranks=ranks) for size in sizes]
    return all_reduces + [reading("send", size, send_us + us[size]) for size in sizes]
