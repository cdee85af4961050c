"""The price of chunks, alone and beside decodes, of a kernel that goes head by head.

Tiles of decodes and chunks are handed out in turn, so the end follows from how much work there is and what may start
last.
"""

from collections.abc import Sequence

from simulator.attention.chunks import TAIL, Chunk, ChunkTiles
from simulator.attention.decodes import bandwidth_share
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import TILE_KEYS, Form, Kernel
from simulator.attention.surfaces import PrefillSurface

_UNLIKE = 0.5  # how the mean rest of tiles under way grows with the longest over their mean


class HeadByHead:
    """Prices with the tiles of `chunks`, and with the surface `prefill` for single ones."""

    def __init__(self, kernel: Kernel, times: KernelTimes, prefill: PrefillSurface, chunks: ChunkTiles) -> None:
        self._kernel, self._times, self._prefill, self._chunks = kernel, times, prefill, chunks

    def price(self, decodes: int, context: int, longest: int, chunks: Sequence[Chunk]) -> float:
        """Microseconds of a call with at least one chunk."""
        if not decodes and len(chunks) == 1 and self._chunks.scaled:
            return self._prefill.price(*chunks[0])
        kernel, times, form = self._kernel, self._times, self._kernel.mixed
        facts = [self._chunks.of(chunk) for chunk in chunks]
        sharing = 1.0
        if form.slots > kernel.multiprocessors:
            tiles = form.heads * (decodes + sum(fact.columns for fact in facts))
            sharing = times.block_us(tiles, kernel.multiprocessors) / times.chunk_us
        work, longest_us = sum(fact.unsplit.work for fact in facts), max(fact.unsplit.longest for fact in facts)
        count, mean = sum(fact.unsplit.number for fact in facts), facts[-1].unsplit.mean
        end = self._interleaved(form, decodes, context, longest, count, work * sharing, mean * sharing)
        alone = max(fact.alone for fact in facts)
        most = max(facts).columns
        empty = decodes * (most - 1) + sum(most - fact.columns for fact in facts)
        return times.fixed_us + max(end, longest_us * sharing, alone) + empty * form.heads * times.empty_us

    def _interleaved(
        self,
        form: Form,
        decodes: int,
        context: int,
        longest: int,
        chunk_tiles: int,
        chunk_work: float,
        chunk_tail: float,
    ) -> float:
        """When decodes and chunks end that are handed out head by head: the last head's longest decode may end late."""
        if not decodes:
            return chunk_work / form.slots + TAIL * chunk_tail if chunk_tiles > form.slots else 0.0
        kernel = self._kernel
        rate = self._times.mixed.rate(bandwidth_share(kernel, self._times, context))
        tiles = decodes * form.heads
        blocks = (context / TILE_KEYS + decodes * rate.start) * form.heads
        under_way = float(min(tiles, form.slots))
        for _ in range(2):  # chunks hold some of the slots, so that fewer decodes share the memory
            block_us = rate.block(under_way, kernel.multiprocessors)
            decode_work = blocks * block_us
            under_way = min(tiles, form.slots * decode_work / (decode_work + chunk_work))
        block_us = rate.block(under_way, kernel.multiprocessors)
        decode_work = blocks * block_us
        longest_us = (longest / TILE_KEYS + rate.start) * block_us
        count = tiles + chunk_tiles
        if count <= form.slots:
            return longest_us
        level = (decode_work + chunk_work) / form.slots
        mean_us = (decode_work + chunk_work) / count
        under_way_us = mean_us / 2 * (1 + _UNLIKE * (longest_us / mean_us - 1))  # what the other slots still have to do
        a_head = 1 / (form.heads * form.slots)
        last_decode = max(level - under_way_us - (decode_work / 2 + chunk_work) * a_head, 0.0)
        last_chunk = max(level - under_way_us - chunk_work / 2 * a_head, 0.0)
        if chunk_tiles < form.slots:  # then decodes need not wait for chunks to leave, nor chunks for each other
            last_chunk = min(last_chunk, decode_work / (form.slots - chunk_tiles))
        if tiles < form.slots:
            last_decode = min(last_decode, chunk_work / (form.slots - tiles))
        return max(level, last_decode + longest_us, last_chunk + chunk_tail)
