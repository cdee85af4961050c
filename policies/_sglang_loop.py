"""SGLang's scheduling loop: its queue, its batches and what it remembers (`srt/managers/scheduler.py`, 0.5.23)."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from policies._sglang_admission import NO_TOKEN, OTHER, Prefills
from simulator.core import (
    DECODES_ONLY,
    DECODES_UNTIL_ARRIVAL,
    DECODES_UNTIL_FINISH,
    DECODING,
    FINISHING,
    Batch,
    Request,
    View,
)
from simulator.policy import Remembering

if TYPE_CHECKING:
    from policies.sglang import Sglang

RETRACT_DECODE_STEPS = 20
"""Steps that every survivor of a retraction should last, by the ratio that is set then."""


class SglangLoop(Remembering):
    """The scheduler of one engine. A step that only decodes is O(1)."""

    def __init__(self, options: Sglang, view: View) -> None:
        pool = view.total_blocks * view.block_size
        self.options = options
        self.mixes = options.enable_mixed_chunk and options.chunked_prefill_size > 0
        self._slots = options.most_running(pool)
        self._view = view
        self.waiting: dict[Request, None] = {}
        self.running: dict[Request, None] = {}
        """The decodes, in SGLang's order."""
        self.last: dict[Request, None] = {}
        """Who joins them from the last step, which had prefills."""
        self.chunked: Request | None = None
        """The only prompt in progress."""
        self._leaves = False
        """Whether it was in the last step: it does not join the decodes, and that makes room."""
        self.full = False
        """Nobody is admitted until somebody leaves (`batch_is_full`)."""
        self.limits: dict[Request, int] = {}
        self.highest_ratio = min(0.7 * options.schedule_conservativeness, 1.0)
        self.lowest_ratio = min(0.14 * self.highest_ratio, 1.0)
        self.ratio = self.highest_ratio
        self._decay = (self.highest_ratio - self.lowest_ratio) / 600
        self._clock = 0
        self._taken = 0
        """Blocks taken in this pass."""
        self._launched: Container[Request] = ()
        """Who was in the step that is under way."""
        self._unforeseen = 0
        """Requests here whose last token is known a step late: they end before their limit (overlap)."""

    def arrived(self, request: Request) -> None:
        """At the end of the queue."""
        self.limits[request] = limit = self.options.output_limit(request, self._view)
        self._unforeseen += self._surprises(request, limit)
        self.waiting[request] = None

    def left(self, request: Request) -> None:
        """Out of whatever batch it is in, which makes room."""
        self._unforeseen -= self._surprises(request, self.limits.pop(request, 0))
        self.waiting.pop(request, None)
        for batch in (self.running, self.last):
            if request in batch:
                del batch[request]
                self.full = False
        if request is self.chunked:
            self.chunked = None

    ended = left

    def _surprises(self, request: Request, limit: int) -> bool:
        return request.target_tokens < limit and not self.options.disable_overlap_schedule

    def available(self, view: View) -> int:
        """Tokens that can be taken."""
        return view.free_blocks * view.block_size

    def hit(self, request: Request) -> int:  # noqa: ARG002 - nothing is cached
        """Tokens found cached of the waiting request that is being tried."""
        return 0

    def generated(self, request: Request, view: View) -> int:
        """Output tokens of `request` that the engine knows."""
        if request.state == DECODING:
            return view.context_tokens(request) + 1 - request.prompt_tokens - (request in self._launched)
        if request.state == FINISHING:
            return request.generated - (request in self._launched)
        return request.known - request.prompt_tokens

    def plan(self, view: View) -> Batch | None:
        """A prefill if one can be formed, else all decodes."""
        self._catch_up(view)
        self._join()
        prefills = self._prefills(view)
        if prefills is None or not prefills.chunks:
            batch = self._decode(view)
            self._launched = self.running if batch is not None else ()
        else:
            batch = self._prefill(prefills, view)
            self._launched = self.last
        return batch

    def _catch_up(self, view: View) -> None:
        """Steps of decodes may have passed, and an idle server goes back to its first ratio."""
        coasted = view.decodes.clock - self._clock
        self._clock = view.decodes.clock
        self._lower_ratio(coasted)
        if coasted:
            self._launched = self.running
        if not view.under_way:
            self._launched = ()
            if not self.limits:
                self.ratio = self.highest_ratio

    def _lower_ratio(self, steps: int) -> None:
        while steps and self.ratio > self.lowest_ratio:
            self.ratio = max(self.ratio - self._decay, self.lowest_ratio)
            steps -= 1

    def _join(self) -> None:
        """Whose prompt the last step completed decodes from now on.

        All who were in it are in `last`, also those who rode along.
        """
        if self._leaves or (self.last and not self.running):
            self.full = False
        self._leaves = False
        self.running.update(self.last)
        self.last = {}

    def _prefills(self, view: View) -> Prefills | None:
        """An attempt to form a prefill batch (`_get_new_batch_prefill_raw`)."""
        if not self.running:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return None
        places = min(self._slots - len(self.running), self._slots - len(view.running) + (self.chunked is not None))
        if places <= 0 and self.chunked is None:
            self.full = True
            return None
        self._sort()
        prefills = Prefills(self, view)
        if self.chunked is not None:
            prefills.go_on(self.chunked)
            if not prefills.chunks:
                return None
        if prefills.state != OTHER:
            self._admit(prefills, places)
        return prefills

    def _sort(self) -> None:
        """The queue is in order of arrival; who was retracted is behind those who had come by then."""

    def _try(self, prefills: Prefills, request: Request) -> int:
        """Whether another may follow after a waiting request, which is in `prefills` then if it was admitted."""
        return prefills.add(request)

    def _admit(self, prefills: Prefills, places: int) -> None:
        """Waiting requests in order, up to the first that is refused."""
        for request in self.waiting:
            if len(prefills.chunks) >= places:
                self.full = True
            if self.full:
                return
            verdict = self._try(prefills, request)
            if verdict == NO_TOKEN:
                self.full = bool(prefills.chunks or self.running)
            if verdict:
                return

    def _prefill(self, prefills: Prefills, view: View) -> Batch:
        """The chunks, with `enable_mixed_chunk` beside the decodes if there is a page for each that needs one."""
        for request, _ in prefills.chunks:
            self.waiting.pop(request, None)
        self.chunked = prefills.chunked
        self.last = {request: None for request, _ in prefills.chunks if request is not self.chunked}
        self._take(prefills, view)
        in_vain: list[Request] = []
        rides = False
        if self.mixes and self.running:
            self._leave_to_finish(view)
            in_vain = self._in_vain(view)
            rides = bool(self.running) and self._fits(self._needed(view, in_vain), view)
        if rides:
            self.last |= self.running
            self.running = {}
            self._clock += view.decoding > 0
        self._leaves = self.chunked is not None
        holds = Batch.ONCE
        if self.chunked is None and not self.waiting:
            holds = self._until_arrival
        elif self.chunked is None and self.full and self.running:
            holds = Batch.UNTIL_FINISH
        return Batch(prefills.chunks, None if rides else (), in_vain=in_vain if rides else (), holds=holds)

    def _take(self, prefills: Prefills, view: View) -> None:
        """Reckon with the blocks of the chunks."""
        self._taken = sum(view.blocks_for(request, tokens) for request, tokens in prefills.chunks)

    def _fits(self, blocks: int, view: View) -> bool:
        """Whether so many blocks can be had, beside those taken in this pass."""
        return blocks <= view.free_blocks - self._taken

    def _let_go(self, victim: Request, survivors: int, view: View) -> None:  # noqa: ARG002 - nothing is cached
        """Take back what `victim` holds."""
        self._taken -= view.held_blocks(victim)

    def _leave_to_finish(self, view: View) -> bool:
        """Whose limit is reached with the token under way is decoded no more; whether there are such (overlap)."""
        foreseen = [request for request in self._finishing(view) if request.generated >= self.limits[request]]
        for request in foreseen:
            del self.running[request]
        if foreseen:
            self.full = False
        return bool(foreseen)

    def _finishing(self, view: View) -> list[Request]:
        return [request for _, requests in view.finishing for request in requests if request in self.running]

    def _in_vain(self, view: View) -> list[Request]:
        """Who has ended by a token that the engine does not know yet (overlap)."""
        return self._finishing(view) if self._unforeseen else []

    def _needed(self, view: View, in_vain: list[Request]) -> int:
        """Pages that one token for everybody takes."""
        return view.decode_blocks + sum(view.blocks_for(request, 1) for request in in_vain)

    @property
    def _until_arrival(self) -> int:
        return Batch.UNTIL_FINISH if self._unforeseen else Batch.UNTIL_ARRIVAL

    def _decode(self, view: View) -> Batch | None:
        """A token for everybody, after retracting some if memory is short."""
        foreseen = bool(view.finishing) and self._leave_to_finish(view)
        if not self.running:
            return None
        in_vain = self._in_vain(view)
        self._taken = 0
        if not self._fits(self._needed(view, in_vain), view):
            return None if foreseen else self._retract(view, in_vain)
        self._clock += view.decoding > 0
        self._lower_ratio(1)
        if in_vain:
            return Batch(in_vain=in_vain)
        if self.chunked is not None or (self.waiting and not self.full):
            return DECODES_ONLY
        return DECODES_UNTIL_FINISH if self.waiting or self._unforeseen else DECODES_UNTIL_ARRIVAL

    def _retract(self, view: View, in_vain: list[Request]) -> Batch:
        """Who generated least, and of those the longest prompts, waits again; the ratio is what the others need."""
        needed = self._needed(view, in_vain)
        order = sorted(self.running, key=lambda request: (-self.generated(request, view), request.prompt_tokens))
        victims: list[Request] = []
        least = self.chunked is None  # else the last one too: it gives way to a prompt in progress
        while len(order) > least and (not victims or not self._fits(needed, view)):
            victim = order.pop()
            victims.append(victim)
            self._let_go(victim, len(order), view)
            needed -= view.blocks_for(victim, 1)
        self.running, self.full = dict.fromkeys(order), False
        self.waiting |= dict.fromkeys(victims)
        if not order:
            return Batch((), (), victims)
        generated = sum(self.generated(request, view) for request in order)
        declared = sum(self.limits[request] for request in order)
        self.ratio = min(1.0, (generated + RETRACT_DECODE_STEPS * len(order)) / (declared + 1))
        self._clock += any(request.state == DECODING for request in order)
        return Batch((), None, victims, in_vain=[request for request in in_vain if request in self.running])
