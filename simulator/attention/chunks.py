"""The tiles of a prefill chunk, and what they take more than their replay says."""

from math import ceil
from typing import NamedTuple

from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import TILE_KEYS, Form, Kernel
from simulator.attention.surfaces import PrefillSurface

TAIL = 0.4
"""Of a chunk's tile: by how much the last slots to end outlast the mean of all."""
_MOST_CHUNKS = 50_000  # remembered

Chunk = tuple[int, int]
"""(context before, tokens)"""


class Tiles(NamedTuple):
    """A chunk's tiles: how many, slot-microseconds of all, microseconds of the longest and of a mean one."""

    number: int
    work: float
    longest: float
    mean: float


class Facts(NamedTuple):
    """What is the same of a chunk in any company: `columns` of tiles, `blocks` of keys of the longest and of all.

    `alone` is what it was measured to take alone without fixed parts, `factor` by how much that exceeds its replay, and
    `unsplit` its tiles with keys not cut, factor included.
    """

    columns: int
    reach: int
    blocks: float
    alone: float
    factor: float
    unsplit: Tiles


class ChunkTiles:
    """The chunks of one kernel. `scaled`: they take in company what replay says, times what they were measured to take
    more alone."""

    def __init__(self, kernel: Kernel, times: KernelTimes, prefill: PrefillSurface, scaled: bool) -> None:
        self._kernel, self._times, self._prefill, self.scaled = kernel, times, prefill, scaled
        self.known: dict[Chunk, Facts] = {}
        """Chunks in the mixed form that were asked for before."""

    def of(self, chunk: Chunk) -> Facts:
        """A chunk in the mixed form of the kernel."""
        return self.known.get(chunk) or self.remember(chunk)

    def remember(self, chunk: Chunk) -> Facts:
        """The same of one that is not known."""
        if len(self.known) >= _MOST_CHUNKS:
            self.known.clear()
        facts = self.known[chunk] = self.facts(self._kernel.mixed, *chunk)
        return facts

    def facts(self, form: Form, before: int, tokens: int) -> Facts:
        columns, factor, alone = ceil(tokens / form.tokens), 1.0, 0.0
        if self.scaled:
            alone, replayed = self._alone(form, before, tokens)
            factor = min(max(alone / replayed, 0.2), 2.0)
        unsplit = self.cut(form, before, tokens, 1, self._times.chunk_us * factor)
        return Facts(columns, before + tokens, columns * (before + tokens) / TILE_KEYS, alone, factor, unsplit)

    def cut(self, form: Form, before: int, tokens: int, splits: int, block_us: float) -> Tiles:
        """The tiles of a chunk whose keys are cut into `splits`."""
        start = self._times.chunk_start
        columns = ceil(tokens / form.tokens)
        keys = columns * before + form.tokens * columns * (columns - 1) / 2 + tokens
        count = columns * form.heads * splits
        work = form.heads * (keys / TILE_KEYS + columns * splits * start) * block_us
        longest = ((before + tokens) / TILE_KEYS / splits + start) * block_us
        return Tiles(count, work, longest, work / count)

    def _alone(self, form: Form, before: int, tokens: int) -> tuple[float, float]:
        """(measured, replayed) microseconds of a chunk alone, without the fixed parts."""
        kernel, times = self._kernel, self._times
        columns = ceil(tokens / form.tokens)
        splits, parts = 1, 1
        if form.dynamic_splits:
            parts = kernel.splits(form, form.heads * columns, before + tokens)
            if parts > 1:
                blocks = ceil((before + tokens) / TILE_KEYS)
                splits = max(min(ceil(blocks / kernel.blocks_a_slot(form, columns * blocks)), parts), 1)
        block_us = times.chunk_us
        if form.slots > kernel.multiprocessors:
            block_us = times.block_us(form.heads * columns, kernel.multiprocessors)
        tiles = self.cut(form, before, tokens, splits, block_us)
        measured = self._prefill.price(before, tokens) - times.fixed_us - times.join_us(parts, tokens * splits)
        waves = tiles.number / form.slots
        if waves <= 1:
            return measured, tiles.longest
        unlike = tokens / (before + tokens)  # tiles of unlike length even out at the end, those alike come in waves
        rest = unlike * TAIL + (1 - unlike) * (ceil(waves) - waves)
        return measured, max(tiles.longest, tiles.work / form.slots + rest * tiles.mean)
