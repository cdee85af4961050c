"""When the slots of the GPU are done with the decodes of a batch."""

from collections.abc import Iterator
from math import ceil

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
    tiles, cut = [], 0
    for blocks in _parts(contexts, form, most_blocks, parts):
        cut += len(blocks)
        tiles += [part + rate.start for part in blocks]
    if form.by_head and parts == 1:
        tiles *= form.heads
    else:
        tiles = [blocks for blocks in tiles for _ in range(form.heads)]
    done = slots_done(tiles, form.slots)
    return [float(end) for end in done_at(done, rate, multiprocessors)], cut


def _parts(contexts: Lengths, form: Form, most_blocks: float, parts: int) -> Iterator[list[float]]:
    """Key blocks, the last one in part, of each part of each request."""
    for context in np.asarray(contexts):
        blocks = float(context) / TILE_KEYS
        whole = ceil(blocks)
        splits = parts if form.uniform_splits else max(min(ceil(whole / most_blocks), parts), 1)
        length = ceil(whole / splits)
        yield [min(length, blocks - start) for start in range(0, whole, length)]
