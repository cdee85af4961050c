"""When the slots of the GPU are done with the decodes of a batch."""

import numpy as np

from simulator.attention.contexts import Lengths
from simulator.attention.kernel_times import DecodeTimes
from simulator.attention.kernels import TILE_KEYS, Form
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
    lengths = np.tile(tiles, form.heads) if form.by_head and parts == 1 else np.repeat(tiles, form.heads)
    done = slots_done(lengths + rate.start, form.slots)
    return done_at(done, rate, multiprocessors).tolist(), len(tiles)


def _cut(blocks: Lengths, form: Form, most_blocks: float, parts: int) -> Lengths:
    """Key blocks, the last one in part, of each part of each request, in order."""
    whole = np.ceil(blocks)
    if form.uniform_splits:
        splits = np.full(len(blocks), float(parts))
    else:
        splits = np.clip(np.ceil(whole / most_blocks), 1, parts)
    length = np.ceil(whole / splits)
    count = np.ceil(whole / length).astype(int)
    first = np.repeat(np.cumsum(count) - count, count)
    place = np.arange(count.sum()) - first
    of_part = np.repeat(length, count)
    left: Lengths = np.repeat(blocks, count) - place * of_part
    return np.asarray(np.minimum(of_part, left))
