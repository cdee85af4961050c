"""When the slots of the GPU are done with the decodes of a batch."""

from math import ceil

import numpy as np

from simulator.attention.contexts import Lengths, spread_contexts
from simulator.attention.kernel_times import DecodeTimes, KernelTimes
from simulator.attention.kernels import TILE_KEYS, UNSPLIT, Form, Kernel
from simulator.attention.replay import done_at, slots_done


def decode_ends(
    contexts: Lengths, form: Form, times: DecodeTimes, multiprocessors: int, *,
    most_blocks: float, parts: int, bandwidth_share: float = 1.0,
) -> tuple[list[float], int]:  # fmt: skip
    """(when each slot is done in microseconds, ascending; parts into which keys were cut, over all decodes).

    A request of more than `most_blocks` key blocks is cut evenly, into at most `parts`; with uniform splits each is.
    """
    rate = times.rate(bandwidth_share)
    blocks = contexts / TILE_KEYS
    tiles = blocks if parts == 1 else _cut(blocks, form, most_blocks, parts)
    lengths = np.tile(tiles, form.heads) if form.by_head and parts == 1 else tiles.repeat(form.heads)
    done = slots_done(lengths + rate.start, form.slots)
    return done_at(done, rate, multiprocessors).tolist(), len(tiles)


def _cut(blocks: Lengths, form: Form, most_blocks: float, parts: int) -> Lengths:
    """Key blocks, the last one in part, of each part of each request, in order."""
    whole = np.ceil(blocks)
    if form.uniform_splits:
        splits = np.full(len(blocks), float(parts))
    else:
        splits = np.minimum(np.maximum(np.ceil(whole / most_blocks), 1), parts)
    length = np.ceil(whole / splits)
    count = np.ceil(whole / length).astype(int)
    ends = count.cumsum()
    place = np.arange(ends[-1]) - (ends - count).repeat(count)
    of_part = length.repeat(count)
    left: Lengths = blocks.repeat(count) - place * of_part
    return np.asarray(np.minimum(of_part, left))


def bandwidth_share(kernel: Kernel, times: KernelTimes, context: float) -> float:
    """How much of what mixed decode tiles read comes from memory: query heads of a group read the same keys in turn."""
    group = kernel.mixed.heads / kernel.alone.heads
    if group <= 1:
        return 1.0
    return 1.0 - (1.0 - 1.0 / group) * min(1.0, times.cached_tokens / max(context, 1.0))


def replay_decodes(kernel: Kernel, times: KernelTimes, decodes: int, mean: float, longest: float) -> float:
    """Microseconds of decodes alone with contexts of this mean and longest."""
    form = kernel.alone
    contexts = spread_contexts(decodes, mean, longest)
    most = UNSPLIT
    parts = kernel.splits(form, form.heads * (decodes if form.uniform_splits else 1), ceil(contexts.max()))
    if parts > 1 and form.dynamic_splits:
        most = kernel.blocks_a_slot(form, float((contexts / TILE_KEYS).sum()) + decodes / 2)
    ends, cut = decode_ends(contexts, form, times.alone, kernel.multiprocessors, most_blocks=most, parts=parts)
    reorder_us = times.reorder_us if form.uniform_splits and decodes > 1 else 0.0
    return times.fixed_us + reorder_us + ends[-1] + times.join_us(parts, cut)
