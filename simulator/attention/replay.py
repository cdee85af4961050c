"""A kernel's schedule, replayed: when each slot of the GPU is done with its tiles.

Tiles wait in order and go to whichever slot is free first. All decode tiles progress at one rate, limited by memory
bandwidth while many are under way and by latency once few are, so *where* each runs is decided in key blocks, and time
follows from how many are under way.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rate:
    """Microseconds that a block of keys takes a decode tile: (latency^k + (bandwidth x tiles under way)^k)^(1/k).

    `shared`: by how much the latency grows where all multiprocessors hold two tiles. `start`: what a tile costs before
    its first block, in blocks.
    """

    latency: float
    bandwidth: float
    start: float
    sharpness: float
    shared: float = 0.0

    def block(self, tiles: float, multiprocessors: int) -> float:
        """Microseconds a block with `tiles` under way."""
        latency = self.latency * (1 + self.shared * min(max(tiles / multiprocessors - 1, 0.0), 1.0))
        power = self.sharpness
        return float((latency**power + (self.bandwidth * tiles) ** power) ** (1 / power))

    def block_us(self, tiles: NDArray[np.float64], multiprocessors: int) -> NDArray[np.float64]:
        """The same for each of these numbers; float64."""
        latency = self.latency * (1 + self.shared * np.clip(tiles / multiprocessors - 1, 0, 1))
        power = self.sharpness
        return np.asarray((latency**power + (self.bandwidth * tiles) ** power) ** (1 / power))


def slots_done(tiles: NDArray[np.float64], slots: int) -> NDArray[np.float64]:
    """Blocks after which each slot is done with the tiles handed to it, ascending; float64 (slots)."""
    first = np.sort(tiles[:slots])
    if len(tiles) <= slots:
        return np.concatenate([np.zeros(slots - len(tiles)), first])
    done = first.tolist()  # sorted, so a heap
    for blocks in tiles[slots:].tolist():
        heapreplace(done, done[0] + blocks)
    done.sort()
    return np.array(done)


def done_at(done_blocks: NDArray[np.float64], rate: Rate, multiprocessors: int) -> NDArray[np.float64]:
    """The same in microseconds: between two ends the slots not yet done set the pace."""
    before = np.concatenate([[0.0], done_blocks[:-1]])
    under_way = len(done_blocks) - done_blocks.searchsorted(before, side="right")
    pace = _paces(rate, len(done_blocks), multiprocessors)[under_way]
    return np.cumsum((done_blocks - before) * pace)


@lru_cache(maxsize=64)
def _paces(rate: Rate, slots: int, multiprocessors: int) -> NDArray[np.float64]:
    """Microseconds a block by the tiles under way, up to `slots`; with none as with one."""
    return rate.block_us(np.maximum(np.arange(slots + 1), 1).astype(float), multiprocessors)


class Profile:
    """Slots that come free at given times, to be filled up with more work."""

    __slots__ = ("capacity", "ends", "last", "sums")

    # arrays, not lists: thousands are kept, and as lists of floats they would not fit into a processor's cache

    def __init__(self, ends: Sequence[float]) -> None:
        """`ends`, ascending: when each slot is done with what it has."""
        times = np.array(ends)
        sums = times.cumsum()
        self.ends = array("d", times.tobytes())
        self.last = self.ends[-1]
        self.sums = array("d", sums.tobytes())
        """Of the first ends; at a place those up to it."""
        self.capacity = array("d", (np.arange(1, len(ends) + 1) * times - sums).tobytes())
        """What the slots that are free by then can do before each end."""

    def level(self, work: float) -> float:
        """Until when `work` (slot-microseconds) keeps busy the slots that are free before then. O(log slots)."""
        used = bisect_right(self.capacity, work)
        return (work + self.sums[used - 1]) / used if used else self.ends[0]
