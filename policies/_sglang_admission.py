"""Which prompts SGLang takes into a step (`srt/managers/schedule_policy.py`, `PrefillAdder` of version 0.5.23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.core import Request, View

if TYPE_CHECKING:
    from policies._sglang_loop import SglangLoop

GO, NO_TOKEN, OTHER = range(3)
"""What follows a prompt: the next may be tried, memory is used up, or a budget is."""
LONGEST_OUTPUT = 4096
"""More output than this of one request is not reckoned with (`CLIP_MAX_NEW_TOKENS`)."""


class Prefills:
    """One attempt to form a prefill batch: its chunks so far, and what is left of budgets and memory. Tokens.

    `total` is what running requests and this batch will need, by the new-token ratio; `current` what they need now.
    O(running) to begin.
    """

    def __init__(self, loop: SglangLoop, view: View) -> None:
        options, riding = loop.options, len(loop.running) if loop.mixes else 0
        self._loop, self._view, self._page = loop, view, view.block_size
        self.chunks: list[tuple[Request, int]] = []
        self.chunked: Request | None = None
        self.input_left = options.max_prefill_tokens - riding
        self.chunk_left = options.chunked_prefill_size - riding if options.chunked_prefill_size > 0 else None
        self.current, self.total = riding, riding + sum(map(self._still_expected, loop.running))
        self._endings: list[tuple[float, int]] | None = None

    @property
    def total_left(self) -> float:
        """Tokens that nobody is expected to need."""
        return self._loop.available(self._view) - self.total

    @property
    def current_left(self) -> int:
        """Tokens that nobody needs now."""
        return self._loop.available(self._view) - self.current

    @property
    def state(self) -> int:
        """Whether another prompt may follow."""
        if self.total_left <= 0 or self.current_left <= 0:
            return NO_TOKEN
        chunk_spent = self.chunk_left is not None and self.chunk_left <= 0
        return OTHER if self.input_left <= 0 or chunk_spent else GO

    def go_on(self, request: Request) -> None:
        """The next chunk of the prompt in progress, without a test; a whole one even when none should be left for it.

        Where SGLang would run out of memory and die (decodes that ride along took what the rest was counted on), or
        has more decodes than a chunk has tokens, it is as much as there is, or nothing.
        """
        assert self.chunk_left is not None
        rest = request.known - request.computed
        fitting = min(self.chunk_left, int(self.total_left))
        room = self._loop.available(self._view) + -request.computed % self._page
        most = min(fitting if fitting > 0 else self.chunk_left, room)
        if most > 0:
            self._take(request, rest, most)

    def add(self, request: Request) -> int:
        """Try a waiting request; whether another may follow. Refused if `chunks` is as it was.

        A second prompt is not cut: SGLang would forget to compute the rest of the first.
        """
        if self._loop.options.disable_radix_cache and self._loop.options.ignores_eos(request):
            return self._add_to_the_end(request)
        rest = request.known - self._loop.hit(request)
        still = max(self._loop.limits[request] - (request.known - request.prompt_tokens), 0)
        if rest + min(still, LONGEST_OUTPUT) + self._page >= self.total_left:
            return NO_TOKEN
        if self.chunk_left is None:
            if self.chunks and self._in_pages(rest) >= self.input_left:
                return OTHER
            self._take(request, rest, rest)
        elif self._in_pages(rest) <= self.chunk_left:
            self._take(request, rest, rest)
        else:
            ends = (request.known - rest + self.chunk_left) // self._page * self._page
            fitting = ends - (request.known - rest)
            if fitting <= 0 or self.chunked is not None:
                return OTHER
            self._take(request, rest, fitting)
        return self.state

    def _add_to_the_end(self, request: Request) -> int:
        """Admission where lengths are known: by the order in which requests will end (`add_one_req_ignore_eos`)."""
        rest = request.known
        needed = self._in_pages(rest) + self._page
        if needed > min(self.current_left, self.total_left) or not self._lasts(request, self.current_left - needed):
            return NO_TOKEN
        whole = self.chunk_left is None or rest <= self.chunk_left
        if not whole and self.chunked is not None:
            return OTHER
        self._take(request, rest, rest if self.chunk_left is None else self.chunk_left)
        return self.state

    def _lasts(self, request: Request, free: int) -> bool:
        """Whether `free` tokens and what ends until then are always enough for those who still run."""
        self._expect(request)
        endings = self._endings or []
        freed = 0
        for place, (left, occupied) in enumerate(endings):
            running = len(endings) - place
            if free + freed - left * running <= running:
                return False
            freed += occupied
        return True

    def _expect(self, request: Request) -> None:
        """Note when `request` will end, beside all who run."""
        if self._endings is None:
            everyone = [request, *self._loop.running, *(chunked for chunked, _ in self.chunks)]
            self._endings = sorted(filter(None, map(self._ending, everyone)), key=_left)
            return
        ending, last = self._ending(request), max(0, len(self._endings) - 1)
        if ending is not None:  # one that ends after all others goes before the last of them: so does SGLang
            later = (place for place, other in enumerate(self._endings) if ending[0] <= other[0])
            self._endings.insert(next(later, last), ending)

    def _ending(self, request: Request) -> tuple[float, int] | None:
        """Tokens that `request` still generates, and those that it then gives back."""
        generated = self._loop.generated(request, self._view)
        left = self._loop.limits[request] * self._certainty(request) - generated
        return (left, request.prompt_tokens + generated) if left > 0 else None

    def _still_expected(self, request: Request) -> float:
        still = self._loop.limits[request] - self._loop.generated(request, self._view)
        return min(still, LONGEST_OUTPUT) * self._certainty(request)

    def _certainty(self, request: Request) -> float:
        """The share of its limit that a request is expected to generate."""
        return 1.0 if self._loop.options.ignores_eos(request) else self._loop.ratio

    def _take(self, request: Request, rest: int, most: int) -> None:
        tokens = min(rest, most)
        pages = self._in_pages(tokens)
        output = 0
        if tokens < rest:
            self.chunked = request
        else:
            output = min(self._loop.limits[request], LONGEST_OUTPUT)
        self.chunks.append((request, tokens))
        self.total += pages + self._page + output
        self.current += pages + self._page
        self.input_left -= pages
        if self.chunk_left is not None:
            self.chunk_left -= pages

    def _in_pages(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page


def _left(ending: tuple[float, int]) -> float:
    return ending[0]
