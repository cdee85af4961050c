"""SGLang's loop with its radix cache on (`srt/managers/schedule_policy.py`, `SchedulePolicy` and
`PrefillAdder.add_one_req`; `srt/managers/scheduler_components/batch_result_processor.py`; version 0.5.23)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING

from policies._sglang_admission import Prefills
from policies._sglang_loop import RETRACT_DECODE_STEPS, SglangLoop
from simulator.core import FINISHING, Batch, Request, View
from simulator.radix import Node
from simulator.radix_memory import RadixMemory

if TYPE_CHECKING:
    from policies.sglang import Sglang

LONGEST_QUEUE = 128
"""With more waiting requests they are not sorted, and only so many are touched (`WAITING_QUEUE_PREFIX_MATCH_MAX`)."""
TOUCHING_INTERVAL = 32
"""Attempts between touches (`WAITING_PREFIX_REFRESH_INTERVAL`)."""
ALIKE = 32
"""Tokens: with no more in the cache a prompt is compared with those that wait (`IN_BATCH_PREFIX_CACHING_*`)."""


class RadixLoop(SglangLoop):
    """Prompts start behind what is cached, and what was computed is entered in the cache."""

    def __init__(self, options: Sglang, view: View) -> None:
        super().__init__(options, view)
        self.cache = RadixMemory(view, self._listed)
        self.memory = self.cache
        self.completed = self._enter_prompts
        self._page = view.block_size
        self._found: Node = self.cache.tree.root
        self._attempts = 0
        self._leaving: list[Request] = []
        """Several with the last token under way, in the order of their batch."""
        self._prompts: deque[list[tuple[Request, int]]] = deque()
        """Of each step under way, whose prompts it completes, with how many tokens."""

    def ended(self, request: Request) -> None:
        """See `SglangLoop`."""
        self.left(request)
        self.cache.forget(request)

    def available(self, view: View) -> int:
        """Tokens that are free or can be evicted."""
        return self.cache.free_blocks * view.block_size

    def hit(self, request: Request) -> int:  # noqa: ARG002 - the interface
        """What was found of the request that is being tried."""
        return self._found.end * self._page

    def plan(self, view: View) -> Batch | None:
        """First the last chunk of the prompt in progress is entered, so that others find it."""
        self._leaving = self._in_batch_order(view) if view.finishing else []
        if self.chunked is not None:
            self.cache.enter(self.chunked, self.chunked.computed)
        batch = super().plan(view)
        if batch is not None:
            self._prompts.append([(each, each.known) for each, _ in batch.chunks if each is not self.chunked])
        return batch

    def _enter_prompts(self, iteration: int) -> None:
        """Enter the prompts that the oldest step completed; outputs follow when their requests finish."""
        for request, tokens in self._prompts.popleft():
            if request.state == FINISHING and request.last_token == iteration:
                self.cache.release(request)
            elif self.cache.holds(request):  # not retracted in the meantime
                self.cache.enter(request, tokens)

    def _in_batch_order(self, view: View) -> list[Request]:
        """Who has the last token under way: they let go in the order that they have now, wherever they are by then."""
        finishing = {request for _, requests in view.finishing for request in requests}
        return [request for request in self._listed() if request in finishing] if len(finishing) > 1 else []

    def _listed(self) -> Iterator[Request]:
        """Who may finish together, in the order in which the results are processed."""
        return iter(dict.fromkeys(chain(self._leaving, self.running, self.last)))

    def _sort(self) -> None:
        """`lpm` puts those first of whom most is cached; otherwise the first are touched now and then."""
        if self.options.schedule_policy == "lpm" and len(self.waiting) <= LONGEST_QUEUE:
            ranks = self._by_match()
            self.waiting = dict.fromkeys(sorted(self.waiting, key=ranks.__getitem__))
        elif self.waiting:
            if self._attempts % TOUCHING_INTERVAL == 0:
                for request in reversed([*islice(self.waiting, LONGEST_QUEUE)]):
                    self.cache.touch(request)
            self._attempts += 1

    def _by_match(self) -> dict[Request, float]:
        """Ranks by what is cached; of prompts that begin alike and are not cached, the first goes and the others wait.

        They are compared page by page, by as many whole pages as hold 32 tokens.
        """
        ranks: dict[Request, float] = {}
        beginnings = set()
        place = -(-ALIKE // self._page) - 1
        for request in self.waiting:
            cached = self.cache.touch(request)
            ranks[request] = -min(cached, request.known - 1)
            if cached <= ALIKE and request.known >= (place + 1) * self._page:
                beginning = self.cache.pages_of(request)[place]
                if beginning in beginnings:
                    ranks[request] = inf
                beginnings.add(beginning)
        return ranks

    def _try(self, prefills: Prefills, request: Request) -> int:
        """What is found can't be evicted for the request itself, so it does not count as available in the test."""
        self._found = found = self.cache.find(request)
        self.cache.tree.lock(found)
        admitted = len(prefills.chunks)
        verdict = super()._try(prefills, request)
        if len(prefills.chunks) > admitted:
            self.cache.hold(request, found)
        self.cache.tree.unlock(found)
        return verdict

    def _take(self, prefills: Prefills, view: View) -> None:  # noqa: ARG002 - the interface
        """SGLang makes room as if each chunk opened one page more than it fills."""
        tokens = sum(tokens for _, tokens in prefills.chunks)
        self.cache.make_room(tokens if self._page == 1 else -(-tokens // self._page) + len(prefills.chunks))
        for request, tokens in prefills.chunks:
            self.cache.take(request, tokens)

    def _fits(self, blocks: int, view: View) -> bool:  # noqa: ARG002 - the interface
        return self.cache.make_room(blocks)

    def _let_go(self, victim: Request, survivors: int, view: View) -> None:
        """Nothing of it is entered, and room is made for the next steps of the others."""
        self.cache.drop(victim, view.context_tokens(victim))
        self.cache.make_room(-(-RETRACT_DECODE_STEPS * survivors // self._page))
