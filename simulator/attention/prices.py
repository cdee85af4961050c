"""Microseconds of an attention call in one layer, from count, sum and longest of the decodes' contexts and the chunks.

- Decodes alone: the kernel's schedule replayed over stand-in contexts (`contexts`), times how much the measured calls
  of equal decodes exceed their replay. By pieces, straight in the sum of contexts, each made when first needed.
- One chunk alone: the measured surface.
- Both, and several chunks: decodes are handed out first, then chunks to whichever slots come free. How the slots come
  free is replayed once for similar decode batches; filling them up takes O(chunks).
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import ceil, log
from typing import NamedTuple

from simulator.attention.contexts import spread_contexts
from simulator.attention.decodes import decode_ends
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import TILE_KEYS, UNSPLIT, Form, Kernel
from simulator.attention.replay import Profile
from simulator.attention.surfaces import PrefillSurface

# Longest over mean, in percent, where one class of spread ends and the next begins; and the ratio that stands for each.
_SPREAD_ENDS = [round(100 * 1.3 ** (place + 0.5)) for place in range(16)]
_SPREADS = [1.3**place for place in range(17)]
_MEANS = sorted({round(16 * 2 ** (place / 3)) for place in range(50)})
_STEP_OF_BLOCKS = log(1.25)
_UNLIKE = 0.5  # how the mean rest of tiles under way grows with the longest over their mean
_EACH_COUNT = 48  # up to so many decodes each number is replayed, of larger ones every fourth
_TAIL = 0.4  # of a chunk's tile: by how much the last slots to end outlast the mean of all


class Piece(NamedTuple):
    """A stretch of a decode batch's price: constant + slope x sum of contexts, for sums below `until`."""

    constant: float
    slope: float
    until: int


class _Decodes(NamedTuple):
    """The slots behind a decode batch of `context` in all, and the parts its keys were cut into."""

    profile: Profile
    context: float
    parts: int


class _Chunk(NamedTuple):
    """One chunk's tiles: how many, slot-microseconds of all, microseconds of the longest and of a mean one."""

    tiles: int
    work: float
    longest: float
    mean: float


class AttentionPrices:
    """Prices under one kernel; nothing is computed ahead."""

    def __init__(
        self, kernel: Kernel, times: KernelTimes, prefill: PrefillSurface, correction: "Correction", scaled: bool = True
    ) -> None:
        """`scaled`: chunks take in company what replay says, times what they were measured to take more alone."""
        self._scaled = scaled
        self._kernel, self._times, self._prefill, self._correction = kernel, times, prefill, correction
        self._bounds: dict[int, list[int]] = {}
        self._prices: dict[tuple[int, int, int], float] = {}
        self._pieces: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._mixed: dict[tuple[int, int, int, int], _Decodes] = {}

    def decode_piece(self, decodes: int, context: int, longest: int) -> Piece:
        """The price of `decodes` decodes alone whose contexts sum to `context`, and as they all grow alike."""
        spread = bisect_right(_SPREAD_ENDS, longest * decodes * 100 // context)
        count = decodes if decodes <= _EACH_COUNT else decodes // 4 * 4
        bounds = self._bounds.get(count)
        if bounds is None:
            bounds = self._bounds[count] = [count * mean for mean in _MEANS]
        place = bisect_right(bounds, context)
        key = (count, spread, place)
        line = self._pieces.get(key)
        if line is None:
            line = self._pieces[key] = self._make_line(count, spread, place)
        until = bounds[place] if place < len(bounds) else 2**62
        if spread:  # as all grow, they grow more alike
            percent = _SPREAD_ENDS[spread - 1]
            grown = (longest * decodes * 100 - percent * context) // (decodes * (percent - 100))
            until = min(until, context + decodes * grown + 1)
        return Piece(*line, until)

    def _make_line(self, decodes: int, spread: int, place: int) -> tuple[float, float]:
        low = min(max(place - 1, 0), len(_MEANS) - 2)
        first, second = self._alone(decodes, spread, low), self._alone(decodes, spread, low + 1)
        slope = (second - first) / (decodes * (_MEANS[low + 1] - _MEANS[low]))
        slope = max(slope, 0.0)
        return first - slope * decodes * _MEANS[low], slope

    def _alone(self, decodes: int, spread: int, place: int) -> float:
        """Microseconds of decodes of the mean `_MEANS[place]`."""
        key = (decodes, spread, place)
        price = self._prices.get(key)
        if price is None:
            mean = _MEANS[place]
            replayed = replay_decodes(self._kernel, self._times, decodes, mean, mean * _SPREADS[spread])
            price = self._prices[key] = replayed * self._correction.at(decodes, mean)
        return price

    def price(self, decodes: int, context: int, longest: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Microseconds of a call with at least one chunk `(context before, tokens)`."""
        if not decodes and len(chunks) == 1:
            return self._prefill.price(*chunks[0])
        return self.filled(decodes, context, longest, chunks)

    def filled(self, decodes: int, context: int, longest: int, chunks: Sequence[tuple[int, int]]) -> float:
        """The same, replayed."""
        kernel, times = self._kernel, self._times
        form, most_tokens, keys = kernel.mixed, 0, longest
        blocks = context / TILE_KEYS + decodes / 2
        for before, tokens in chunks:
            if tokens > most_tokens:
                most_tokens = tokens
            if before + tokens > keys:
                keys = before + tokens
            blocks += ceil(tokens / form.tokens) * (before + tokens) / TILE_KEYS
        if most_tokens <= kernel.alone.tokens and kernel.alone.dynamic_splits:
            form = kernel.alone
        most, parts = UNSPLIT, 1
        if form.dynamic_splits:
            parts = kernel.splits(form, form.heads * ceil(most_tokens / form.tokens), keys)
            if parts > 1:
                most = kernel.blocks_a_slot(form, blocks)
        cut, scale, profile = 0, 1.0, None
        if decodes and not form.by_head:
            behind = self._behind(form, decodes, context, longest, most, parts)
            profile, scale, cut = behind.profile, context / behind.context, behind.parts
        done, work, count, tail = (profile.last * scale if profile else 0.0), 0.0, 0, 0.0
        single, block_us = 0.0, times.chunk_us
        if form.slots > kernel.multiprocessors:
            tiles = form.heads * (decodes + sum(ceil(tokens / form.tokens) for _, tokens in chunks))
            block_us = times.block_us(tiles, kernel.multiprocessors)
        for before, tokens in chunks:
            splits = 1
            if parts > 1:
                splits = max(min(ceil((before + tokens) / TILE_KEYS / most), parts), 1)
                cut += tokens * splits
            chunk = self._chunk(form, before, tokens, splits, block_us)
            factor = 1.0
            if self._scaled:
                measured, replayed = self._measured(form, before, tokens)
                factor = min(max(measured / replayed, 0.2), 2.0)
                if parts == 1:
                    single = max(single, measured)
            start = profile.level(work / scale) * scale if profile else work / form.slots
            done = max(done, start + chunk.longest * factor)
            work += chunk.work * factor
            count += chunk.tiles
            tail = chunk.mean * factor
        if form.by_head:
            end = self._interleaved(form, decodes, context, longest, count, work, tail)
        elif profile:
            end = profile.level(work / scale) * scale
            if count <= form.slots:
                end = max(end, profile.ends[count - 1] * scale + tail)
            else:
                end += _TAIL * tail
        else:
            end = work / form.slots + (_TAIL * tail if count > form.slots else 0.0)
        total = times.fixed_us + max(done, end, single)
        if form.by_head:
            longest_column = ceil(most_tokens / form.tokens)
            empty = decodes * (longest_column - 1) + sum(longest_column - ceil(t / form.tokens) for _, t in chunks)
            total += empty * form.heads * times.empty_us
        return total + times.join_us(parts, cut)

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
        return max(level, last_decode + longest_us, last_chunk + chunk_tail)

    def _chunk(self, form: Form, before: int, tokens: int, splits: int, block_us: float) -> _Chunk:
        """The tiles of a chunk whose keys are cut into `splits`, as replay has them."""
        start = self._times.chunk_start
        columns = ceil(tokens / form.tokens)
        keys = columns * before + form.tokens * columns * (columns - 1) / 2 + tokens
        tiles = columns * form.heads * splits
        work = form.heads * (keys / TILE_KEYS + columns * splits * start) * block_us
        longest = ((before + tokens) / TILE_KEYS / splits + start) * block_us
        return _Chunk(tiles, work, longest, work / tiles)

    def _measured(self, form: Form, before: int, tokens: int) -> tuple[float, float]:
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
        chunk = self._chunk(form, before, tokens, splits, block_us)
        measured = self._prefill.price(before, tokens) - times.fixed_us - times.join_us(parts, tokens * splits)
        waves = chunk.tiles / form.slots
        if waves <= 1:
            return measured, chunk.longest
        unlike = tokens / (before + tokens)  # tiles of unlike length even out at the end, those alike come in waves
        rest = unlike * _TAIL + (1 - unlike) * (ceil(waves) - waves)
        return measured, max(chunk.longest, chunk.work / form.slots + rest * chunk.mean)

    def _behind(self, form: Form, decodes: int, context: int, longest: int, most: float, parts: int) -> _Decodes:
        """The slots behind decodes like these."""
        spread = bisect_right(_SPREAD_ENDS, longest * decodes * 100 // context)
        count = decodes if decodes <= _EACH_COUNT else decodes // 4 * 4
        place = min(bisect_right(_MEANS, context // decodes), len(_MEANS) - 1)
        step = 0
        if most * TILE_KEYS < longest:
            step = 1 + round(log(most) / _STEP_OF_BLOCKS)
        key = (count if form is self._kernel.mixed else -count, spread, place, step)
        behind = self._mixed.get(key)
        if behind is None:
            mean = _MEANS[place]
            times = self._times.mixed if form is self._kernel.mixed else self._times.alone
            ends, cut = decode_ends(
                spread_contexts(count, mean, mean * _SPREADS[spread]), form, times, self._kernel.multiprocessors,
                most_blocks=1.25 ** (step - 1) if step else UNSPLIT, parts=parts,
                bandwidth_share=bandwidth_share(self._kernel, self._times, count * mean),
            )  # fmt: skip
            behind = self._mixed[key] = _Decodes(Profile(ends), count * mean, cut)
        return behind


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


class Correction:
    """By how much measured calls of equal decodes exceed their replay: factors over (decodes, mean context).

    Straight between measured points on logarithmic axes, constant outside. Each point is replayed when first needed.
    """

    def __init__(self, measured: dict[int, dict[int, float]], replay: Callable[[int, int], float]) -> None:
        """`measured` microseconds by number of decodes, then by context; empty: no correction. `replay`: the same."""
        self._counts = sorted(measured)
        self._rows = [(count, sorted(measured[count]), measured[count]) for count in self._counts]
        self._replay = replay
        self._factors: dict[tuple[int, int], float] = {}

    def at(self, decodes: int, mean: float) -> float:
        """The factor for `decodes` decodes of `mean` context."""
        if not self._counts:
            return 1.0
        above = min(max(bisect_right(self._counts, decodes), 1), len(self._counts) - 1)
        low, high = max(above - 1, 0), above
        share = _share(decodes, self._counts[low], self._counts[high])
        return (1 - share) * self._row(low, mean) + share * self._row(high, mean)

    def _row(self, place: int, mean: float) -> float:
        count, contexts, measured = self._rows[place]
        above = min(max(bisect_right(contexts, mean), 1), len(contexts) - 1)
        low, high = contexts[max(above - 1, 0)], contexts[above]
        share = _share(mean, low, high)
        return (1 - share) * self._factor(count, low, measured) + share * self._factor(count, high, measured)

    def _factor(self, count: int, context: int, measured: dict[int, float]) -> float:
        factor = self._factors.get((count, context))
        if factor is None:
            factor = self._factors[count, context] = measured[context] / self._replay(count, context)
        return factor


NO_CORRECTION = Correction({}, lambda *_: 1.0)


def _share(at: float, low: float, high: float) -> float:
    """Where `at` lies between `low` and `high` on a logarithmic axis, from 0 to 1."""
    return 0.0 if high <= low else min(max(log(at / low) / log(high / low), 0.0), 1.0)
