"""How the slots of the GPU come free behind the decodes of a batch: replayed once for all batches of a class."""

from bisect import bisect_right
from typing import NamedTuple

from simulator.attention.classes import MEANS, SPREAD_ENDS, SPREADS, count_class
from simulator.attention.contexts import spread_contexts
from simulator.attention.decodes import bandwidth_share, decode_ends
from simulator.attention.kernel_times import KernelTimes
from simulator.attention.kernels import TILE_KEYS, UNSPLIT, Form, Kernel
from simulator.attention.replay import Profile

_MOST_BLOCKS = sorted({round(1.4**step) for step in range(30)})
_ANY_PARTS = 128
_EXACT, _COUNTS = 16, 2048


class Behind(NamedTuple):
    """The slots behind a decode batch, and the parts its keys were cut into.

    `work`: of the batch, in keys, what tiles cost to start included.
    """

    profile: Profile
    work: float
    parts: int


Scaled = tuple[Profile, float, int]
"""(the profile of the class, by how much the batch's work exceeds that of the class, parts)."""


class SlotsBehind:
    """What is behind the decode batches of one kernel; each class is replayed when first needed."""

    def __init__(self, kernel: Kernel, times: KernelTimes) -> None:
        self._kernel, self._times = kernel, times
        self._counts = [count_class(decodes, _EXACT) for decodes in range(_COUNTS)]
        self._behinds: dict[tuple[int, int, int, int, int], Behind] = {}
        self._unsplit: dict[tuple[int, int, int], Behind] = {}
        self._mixed_start, self._alone_start = (TILE_KEYS * form.start_blocks for form in (times.mixed, times.alone))
        """What a tile costs to start, in keys."""

    def of(self, form: Form, decodes: int, context: int, longest: int, most: float, parts: int) -> Scaled:
        """Behind decodes like these, whose keys are cut into pieces of at most `most` blocks or so."""
        mixed = form is self._kernel.mixed
        if most * TILE_KEYS >= longest:
            if mixed:
                return self.unsplit(decodes, context, longest)
            parts, step = 1, 0
        else:
            step = bisect_right(_MOST_BLOCKS, most)
            if longest <= parts * TILE_KEYS * _MOST_BLOCKS[step - 1]:
                parts = _ANY_PARTS
        count = self._counts[decodes] if decodes < _COUNTS else count_class(decodes, _EXACT)
        spread = bisect_right(SPREAD_ENDS, longest * decodes * 100 // context)
        place = bisect_right(MEANS, context // decodes)
        key = (count if mixed else -count, spread, place, step, parts)
        behind = self._behinds.get(key)
        if behind is None:
            most = _MOST_BLOCKS[step - 1] if step else UNSPLIT
            behind = self._behinds[key] = self._replayed(form, count, spread, place, most, parts)
        start = self._mixed_start if mixed else self._alone_start
        return behind.profile, (context + decodes * start) / behind.work, behind.parts

    def unsplit(self, decodes: int, context: int, longest: int) -> Scaled:
        """Behind decodes in the mixed form whose keys are not cut."""
        count = self._counts[decodes] if decodes < _COUNTS else count_class(decodes, _EXACT)
        key = (
            count,
            bisect_right(SPREAD_ENDS, longest * decodes * 100 // context),
            bisect_right(MEANS, context // decodes),
        )
        behind = self._unsplit.get(key)
        if behind is None:
            behind = self._unsplit[key] = self._replayed(self._kernel.mixed, *key, UNSPLIT, 1)
        return behind.profile, (context + decodes * self._mixed_start) / behind.work, 0

    def _replayed(self, form: Form, count: int, spread: int, place: int, most: float, parts: int) -> Behind:
        mean = MEANS[min(place, len(MEANS) - 1)]
        ends, cut = decode_ends(
            spread_contexts(count, mean, mean * SPREADS[spread]),
            form,
            self._times.mixed if form is self._kernel.mixed else self._times.alone,
            self._kernel.multiprocessors,
            most_blocks=most,
            parts=parts,
            bandwidth_share=bandwidth_share(self._kernel, self._times, count * mean),
        )
        start = self._mixed_start if form is self._kernel.mixed else self._alone_start
        return Behind(Profile(ends), count * (mean + start), cut)
