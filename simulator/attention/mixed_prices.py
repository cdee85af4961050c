"""The price of chunks, alone and beside decodes.

Decodes are handed out first, then chunks to whichever slots come free. How slots come free behind a decode batch is
replayed once for all batches of its class; filling them up takes O(chunks). Kernels that go head by head hand out both
at once; there the end follows from how much work there is and what may start last.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from simulator.attention.classes import MEANS, SPREAD_ENDS, SPREADS, count_class
from simulator.attention.contexts import spread_contexts
from simulator.attention.decodes import bandwidth_share, decode_ends
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import TILE_KEYS, UNSPLIT, Form, Kernel
from simulator.attention.replay import Profile
from simulator.attention.surfaces import PrefillSurface

_MOST_BLOCKS = sorted({round(1.4**step) for step in range(30)})
_ANY_PARTS = 128
_UNLIKE = 0.5  # how the mean rest of tiles under way grows with the longest over their mean
_TAIL = 0.4  # of a chunk's tile: by how much the last slots to end outlast the mean of all
_MOST_CHUNKS = 50_000  # remembered

Chunk = tuple[int, int]
"""(context before, tokens)"""


Price = Callable[[int, int, int, Sequence[Chunk]], float]
_EXACT, _COUNTS = 16, 2048


class _Tiles(NamedTuple):
    """A chunk's tiles: how many, slot-microseconds of all, microseconds of the longest and of a mean one."""

    number: int
    work: float
    longest: float
    mean: float


class _Facts(NamedTuple):
    """What is the same of a chunk in any company: `columns` of tiles, `blocks` of keys of the longest and of all.

    `alone` is what it was measured to take alone without fixed parts, `factor` by how much that exceeds its replay, and
    `unsplit` its tiles with keys not cut, factor included.
    """

    columns: int
    reach: int
    blocks: float
    alone: float
    factor: float
    unsplit: _Tiles


class _Behind(NamedTuple):
    """The slots behind a decode batch of `context` in all, and the parts its keys were cut into."""

    profile: Profile
    context: float
    parts: int


class MixedPrices:
    """Microseconds of a call in one layer.

    `scaled`: chunks take in company what replay says, times what they were measured to take more alone.
    """

    def __init__(self, kernel: Kernel, times: KernelTimes, prefill: PrefillSurface, scaled: bool = True) -> None:
        self._kernel, self._times, self._prefill, self._scaled = kernel, times, prefill, scaled
        self._known: dict[Chunk, _Facts] = {}
        self._behinds: dict[tuple[int, int, int, int, int], _Behind] = {}
        self._counts = [count_class(decodes, _EXACT) for decodes in range(_COUNTS)]
        self.price: Price = self._by_head if kernel.mixed.by_head else self._by_request
        """Of a call with at least one chunk: (decodes, sum of their contexts, the longest, chunks)."""
        self._unsplit_tiles = 0.8 * kernel.mixed.slots
        self._short = kernel.alone.tokens if kernel.alone.dynamic_splits else 0

    def _beside_one(self, decodes: int, context: int, longest: int, chunk: Chunk, facts: _Facts) -> float:
        """Of decodes and one chunk: most calls, so nothing is asked twice."""
        form, tiles, parts = self._kernel.mixed, facts.unsplit, 1
        if tiles.number < self._unsplit_tiles:
            parts = self._kernel.splits(form, tiles.number, longest if longest > facts.reach else facts.reach)
        if parts == 1:
            behind, cut, alone = self._behind(form, decodes, context, longest, UNSPLIT, 1), 0, facts.alone
        else:
            most = self._kernel.blocks_a_slot(form, context / TILE_KEYS + decodes / 2 + facts.blocks)
            behind, alone = self._behind(form, decodes, context, longest, most, parts), 0.0
            splits = max(min(ceil(facts.reach / TILE_KEYS / most), parts), 1)
            cut = behind.parts + chunk[1] * splits
            if splits > 1:
                tiles = self._tiles(form, *chunk, splits, self._times.chunk_us * facts.factor)
        profile, scale = behind.profile, context / behind.context
        number, work, longest_us, mean = tiles
        done = max(profile.last, profile.ends[0] + longest_us / scale)
        end = profile.level(work / scale)
        if number > form.slots:
            end += _TAIL * mean / scale
        else:
            end = max(end, profile.ends[number - 1] + mean / scale)
        slots_us = scale * (done if done > end else end)
        return self._times.fixed_us + (alone if alone > slots_us else slots_us) + self._times.join_us(parts, cut)

    def _by_request(self, decodes: int, context: int, longest: int, chunks: Sequence[Chunk]) -> float:
        if len(chunks) == 1:
            if not decodes and self._scaled:
                return self._prefill.price(*chunks[0])
            if decodes and chunks[0][1] > self._short:
                known = self._known.get(chunks[0]) or self._remember(chunks[0])
                return self._beside_one(decodes, context, longest, chunks[0], known)
        times, form = self._times, self._kernel.mixed
        if max(chunks, key=_tokens_of)[1] <= self._short:  # the form with smaller tiles serves all
            form = self._kernel.alone
            facts = [self._facts(form, *chunk) for chunk in chunks]
        else:
            facts = [self._known.get(chunk) or self._remember(chunk) for chunk in chunks]
        most, parts, cut = UNSPLIT, self._parts(form, longest, facts), 0
        if parts > 1:
            blocks = context / TILE_KEYS + decodes / 2 + sum(fact.blocks for fact in facts)
            most = self._kernel.blocks_a_slot(form, blocks)
        profile, scale = None, 1.0
        if decodes:
            behind = self._behind(form, decodes, context, longest, most, parts)
            profile, scale, cut = behind.profile, context / behind.context, behind.parts
        done, work, count, mean, alone = (profile.last * scale if profile else 0.0), 0.0, 0, 0.0, 0.0
        for fact, (before, tokens) in zip(facts, chunks, strict=True):
            tiles = fact.unsplit
            if parts > 1:
                splits = max(min(ceil(fact.reach / TILE_KEYS / most), parts), 1)
                cut += tokens * splits
                if splits > 1:
                    tiles = self._tiles(form, before, tokens, splits, times.chunk_us * fact.factor)
            elif fact.alone > alone:
                alone = fact.alone
            if work:
                start = profile.level(work / scale) * scale if profile else work / form.slots
            else:
                start = profile.ends[0] * scale if profile else 0.0
            if start + tiles.longest > done:
                done = start + tiles.longest
            work += tiles.work
            count += tiles.number
            mean = tiles.mean
        end = profile.level(work / scale) * scale if profile else work / form.slots
        if count > form.slots:
            end += _TAIL * mean
        elif profile:
            end = max(end, profile.ends[count - 1] * scale + mean)
        return times.fixed_us + max(done, end, alone) + times.join_us(parts, cut)

    def _parts(self, form: Form, longest: int, facts: Sequence[_Facts]) -> int:
        """Into how many parts keys may be cut."""
        tiles = form.heads * max(facts).columns
        if tiles >= 0.8 * form.slots:
            return 1
        return self._kernel.splits(form, tiles, max(longest, *(fact.reach for fact in facts)))

    def _by_head(self, decodes: int, context: int, longest: int, chunks: Sequence[Chunk]) -> float:
        if not decodes and len(chunks) == 1 and self._scaled:
            return self._prefill.price(*chunks[0])
        kernel, times, form = self._kernel, self._times, self._kernel.mixed
        facts = [self._known.get(chunk) or self._remember(chunk) for chunk in chunks]
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
            return chunk_work / form.slots + _TAIL * chunk_tail if chunk_tiles > form.slots else 0.0
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

    def _remember(self, chunk: Chunk) -> _Facts:
        if len(self._known) >= _MOST_CHUNKS:
            self._known.clear()
        facts = self._known[chunk] = self._facts(self._kernel.mixed, *chunk)
        return facts

    def _facts(self, form: Form, before: int, tokens: int) -> _Facts:
        columns, factor, alone = ceil(tokens / form.tokens), 1.0, 0.0
        if self._scaled:
            alone, replayed = self._alone(form, before, tokens)
            factor = min(max(alone / replayed, 0.2), 2.0)
        unsplit = self._tiles(form, before, tokens, 1, self._times.chunk_us * factor)
        return _Facts(columns, before + tokens, columns * (before + tokens) / TILE_KEYS, alone, factor, unsplit)

    def _tiles(self, form: Form, before: int, tokens: int, splits: int, block_us: float) -> _Tiles:
        """The tiles of a chunk whose keys are cut into `splits`."""
        start = self._times.chunk_start
        columns = ceil(tokens / form.tokens)
        keys = columns * before + form.tokens * columns * (columns - 1) / 2 + tokens
        count = columns * form.heads * splits
        work = form.heads * (keys / TILE_KEYS + columns * splits * start) * block_us
        longest = ((before + tokens) / TILE_KEYS / splits + start) * block_us
        return _Tiles(count, work, longest, work / count)

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
        tiles = self._tiles(form, before, tokens, splits, block_us)
        measured = self._prefill.price(before, tokens) - times.fixed_us - times.join_us(parts, tokens * splits)
        waves = tiles.number / form.slots
        if waves <= 1:
            return measured, tiles.longest
        unlike = tokens / (before + tokens)  # tiles of unlike length even out at the end, those alike come in waves
        rest = unlike * _TAIL + (1 - unlike) * (ceil(waves) - waves)
        return measured, max(tiles.longest, tiles.work / form.slots + rest * tiles.mean)

    def _behind(self, form: Form, decodes: int, context: int, longest: int, most: float, parts: int) -> _Behind:
        """The slots behind decodes like these, whose keys are cut into pieces of at most `most` blocks or so."""
        count = self._counts[decodes] if decodes < _COUNTS else count_class(decodes, _EXACT)
        spread = bisect_right(SPREAD_ENDS, longest * decodes * 100 // context)
        place = bisect_right(MEANS, context // decodes)
        if most * TILE_KEYS >= longest:
            parts, step = 1, 0
        else:
            step = bisect_right(_MOST_BLOCKS, most)
            if longest <= parts * TILE_KEYS * _MOST_BLOCKS[step - 1]:
                parts = _ANY_PARTS
        mixed = form is self._kernel.mixed
        key = (count if mixed else -count, spread, place, step, parts)
        behind = self._behinds.get(key)
        if behind is None:
            mean = MEANS[min(place, len(MEANS) - 1)]
            ends, cut = decode_ends(
                spread_contexts(count, mean, mean * SPREADS[spread]),
                form,
                self._times.mixed if mixed else self._times.alone,
                self._kernel.multiprocessors,
                most_blocks=_MOST_BLOCKS[step - 1] if step else UNSPLIT,
                parts=parts,
                bandwidth_share=bandwidth_share(self._kernel, self._times, count * mean),
            )
            behind = self._behinds[key] = _Behind(Profile(ends), count * mean, cut)
        return behind


def _tokens_of(chunk: Chunk) -> int:
    return chunk[1]
