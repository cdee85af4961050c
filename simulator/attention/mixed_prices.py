"""The price of chunks, alone and beside decodes, of a kernel that goes request by request.

Decodes are handed out first, then chunks to whichever slots come free. How slots come free behind a decode batch is
replayed once for all batches of its class (`behind.py`); filling them up takes O(chunks). For kernels that go head by
head see `by_head.py`.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import ceil

from simulator.attention.behind import SlotsBehind
from simulator.attention.by_head import HeadByHead
from simulator.attention.chunks import TAIL, Chunk, ChunkTiles, Facts, Tiles
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import FULL, TILE_KEYS, UNSPLIT, Form, Kernel
from simulator.attention.replay import Profile
from simulator.attention.surfaces import PrefillSurface

Price = Callable[[int, int, int, Sequence[Chunk]], float]


class MixedPrices:
    """Microseconds of a call in one layer.

    `scaled`: chunks take in company what replay says, times what they were measured to take more alone.
    """

    def __init__(self, kernel: Kernel, times: KernelTimes, prefill: PrefillSurface, scaled: bool = True) -> None:
        self._kernel, self._times, self._prefill, self._scaled = kernel, times, prefill, scaled
        self._chunks = ChunkTiles(kernel, times, prefill, scaled)
        self._behind = SlotsBehind(kernel, times)
        by_head = kernel.mixed.by_head
        self.price: Price = HeadByHead(kernel, times, prefill, self._chunks).price if by_head else self._by_request
        """Of a call with at least one chunk: (decodes, sum of their contexts, the longest, chunks)."""
        self._idle = {form: Profile([0.0] * form.slots) for form in (kernel.alone, kernel.mixed)}
        self._slots, self._unsplit_tiles = kernel.mixed.slots, FULL * kernel.mixed.slots
        self._short = kernel.alone.tokens if kernel.alone.dynamic_splits else 0

    def _by_request(self, decodes: int, context: int, longest: int, chunks: Sequence[Chunk]) -> float:
        """Most calls have decodes and one chunk that is not short: these take the short way, and ask nothing twice."""
        if len(chunks) > 1 or not decodes:
            return self._beside_any(decodes, context, longest, chunks)
        chunk = chunks[0]
        if chunk[1] <= self._short:
            return self._beside_any(decodes, context, longest, chunks)
        facts = self._chunks.known.get(chunk) or self._chunks.remember(chunk)
        (number, work, longest_us, mean), reach, slots = facts.unsplit, facts.reach, self._slots
        if number < self._unsplit_tiles:
            parts = self._kernel.splits(self._kernel.mixed, number, longest if longest > reach else reach)
            if parts > 1:
                return self._beside_split(decodes, context, longest, chunk, facts, parts)
        profile, scale, _ = self._behind.unsplit(decodes, context, longest)
        ends = profile.ends
        level = work / scale  # in the time of the class from here on
        used = bisect_right(profile.capacity, level)
        end = (level + profile.sums[used - 1]) / used if used else ends[0]
        if number > slots:
            end += TAIL * mean / scale
        else:
            last = ends[number - 1] + mean / scale
            if last > end:
                end = last
        done = ends[0] + longest_us / scale
        if profile.last > done:
            done = profile.last
        slots_us = scale * (done if done > end else end)
        return self._times.fixed_us + (facts.alone if facts.alone > slots_us else slots_us)

    def _beside_split(self, decodes: int, context: int, longest: int, chunk: Chunk, facts: Facts, parts: int) -> float:
        """Of decodes and one chunk, where keys may be cut into `parts`."""
        kernel, form, tiles = self._kernel, self._kernel.mixed, facts.unsplit
        most = kernel.blocks_a_slot(form, context / TILE_KEYS + decodes / 2 + facts.blocks)
        profile, scale, cut = self._behind.of(form, decodes, context, longest, most, parts)
        splits = max(min(ceil(facts.reach / TILE_KEYS / most), parts), 1)
        if splits > 1:
            tiles = self._chunks.cut(form, *chunk, splits, self._times.chunk_us * facts.factor)
        number, work, longest_us, mean = tiles
        done = max(profile.last, profile.ends[0] + longest_us / scale)
        end = profile.level(work / scale)
        if number > form.slots:
            end += TAIL * mean / scale
        else:
            end = max(end, profile.ends[number - 1] + mean / scale)
        return self._times.fixed_us + scale * max(done, end) + self._times.join_us(parts, cut + chunk[1] * splits)

    def _beside_any(self, decodes: int, context: int, longest: int, chunks: Sequence[Chunk]) -> float:
        """Of any number of chunks, and decodes or none."""
        if len(chunks) == 1 and not decodes and self._scaled:
            return self._prefill.price(*chunks[0])
        kernel, form = self._kernel, self._kernel.mixed
        if max(chunks, key=_tokens_of)[1] <= self._short:  # the form with smaller tiles serves all
            form = kernel.alone
            facts = [self._chunks.facts(form, *chunk) for chunk in chunks]
        else:
            facts = [self._chunks.of(chunk) for chunk in chunks]
        most, parts, cut = UNSPLIT, self._parts(form, longest, facts), 0
        if parts > 1:
            blocks = context / TILE_KEYS + decodes / 2 + sum(fact.blocks for fact in facts)
            most = kernel.blocks_a_slot(form, blocks)
        profile, scale = self._idle[form], 1.0
        if decodes:
            profile, scale, cut = self._behind.of(form, decodes, context, longest, most, parts)
        if parts == 1:
            alone = max(0.0, *(fact.alone for fact in facts))
            return self._times.fixed_us + max(_filled(profile, scale, [fact.unsplit for fact in facts]), alone)
        tiles = []
        for fact, chunk in zip(facts, chunks, strict=True):
            splits = max(min(ceil(fact.reach / TILE_KEYS / most), parts), 1)
            cut += chunk[1] * splits
            block_us = self._times.chunk_us * fact.factor
            tiles.append(self._chunks.cut(form, *chunk, splits, block_us) if splits > 1 else fact.unsplit)
        return self._times.fixed_us + _filled(profile, scale, tiles) + self._times.join_us(parts, cut)

    def _parts(self, form: Form, longest: int, facts: Sequence[Facts]) -> int:
        """Into how many parts keys may be cut."""
        tiles = form.heads * max(facts).columns
        if tiles >= FULL * form.slots:
            return 1
        return self._kernel.splits(form, tiles, max(longest, *(fact.reach for fact in facts)))


def _filled(profile: Profile, scale: float, chunks: Sequence[Tiles]) -> float:
    """When the last slot is done that `profile`, times `scale`, and then the tiles of chunks keep busy."""
    done, work, count = profile.last * scale, 0.0, 0
    for tiles in chunks:
        start = profile.level(work / scale) if work else profile.ends[0]
        done = max(done, start * scale + tiles.longest)
        work += tiles.work
        count += tiles.number
    end, mean = profile.level(work / scale) * scale, chunks[-1].mean
    if count > len(profile.ends):
        return max(done, end + TAIL * mean)
    return max(done, end, profile.ends[count - 1] * scale + mean)


def _tokens_of(chunk: Chunk) -> int:
    return chunk[1]
