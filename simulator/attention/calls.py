"""Measured attention calls, and a first guess of a kernel's constants from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from simulator.attention.kernel_times import DecodeTimes, KernelTimes
from simulator.attention.kernels import TILE_KEYS, Kernel


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """A call in one layer: `decodes` whose contexts sum to `context`, the longest `longest`, and chunks
    `(context before, tokens)`; microseconds."""

    decodes: int
    context: int
    longest: int
    chunks: tuple[tuple[int, int], ...]
    time_us: float


def guess_times(kernel: Kernel, calls: Sequence[MeasuredCall]) -> KernelTimes:
    """Constants that are about right for a large GPU: where to begin a fit, and what to go by without one.

    Bandwidth and a chunk's block come from the largest calls of decodes alone and of one chunk alone; there must be
    one of each.
    """
    most = max((call for call in calls if not call.chunks), key=lambda call: call.context)
    block_us = most.time_us / (most.context / TILE_KEYS * kernel.alone.heads)
    largest = max((call for call in calls if not call.decodes and len(call.chunks) == 1), key=lambda call: call.time_us)
    before, tokens = largest.chunks[0]
    tiles = ceil(tokens / kernel.mixed.tokens) * kernel.mixed.heads
    blocks = tiles * (before + tokens / 2) / TILE_KEYS
    chunk_us = largest.time_us * min(kernel.mixed.slots, tiles) / max(blocks, 1.0)
    fixed_us = 0.8 * min(call.time_us for call in calls)
    latency_us = 75 * block_us  # of so many tiles the memory of an H200 serves as many as it can
    share = kernel.alone.heads / kernel.mixed.heads
    sharing = 0.5 if kernel.mixed.slots > kernel.multiprocessors else 0.0
    return KernelTimes(
        fixed_us=fixed_us,
        alone=DecodeTimes(latency_us, block_us, 1.0, 2.3, 0.3),
        mixed=DecodeTimes(latency_us, block_us * max(share, 0.8), 1.2, 2.3, 0.3),
        chunk_us=chunk_us,
        chunk_start=1.5,
        chunk_shared=sharing,
        combine_us=0.2 * fixed_us,
        combine_split_us=0.015 * fixed_us,
        combine_part_us=0.0003 * fixed_us,
        empty_us=0.0002 * fixed_us,
        cached_tokens=40_000.0,
        reorder_us=0.4 * fixed_us,
    )
