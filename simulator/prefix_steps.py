"""Hands out a step's KV blocks where they have identities, in the engine's order, so that the same are reused first."""

from collections.abc import Hashable, Iterable, Sequence

from simulator.core import Batch, Request, View
from simulator.errors import PolicyError
from simulator.prefix import PrefixBlocks


class PrefixSteps:
    """Blocks for what a policy (named `name` in errors) plans; who is admitted starts with what is found cached.

    See `ContentMemory`.
    """

    by_residue = True
    coasts = False

    def __init__(self, pool: PrefixBlocks, view: View, name: str) -> None:
        self.pool = pool
        self._view = view
        self._name = name

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self.pool.free)

    def serve(self, batch: Batch) -> int:
        """Running requests by admission, then the admitted. O(chunks + decodes that open or fill a block)."""
        decodes, size = self._view.decodes, self._view.block_size
        clock, groups = decodes.clock, decodes.groups
        assert groups is not None
        growing: list[tuple[Request, int]] = []
        if batch.decodes is None or batch.decodes:
            for residue in {-clock % size, -(clock + 1) % size}:
                growing += [(request, request.birth + clock + 1) for request in groups[residue]]
        running = [(request, tokens) for request, tokens in batch.chunks if request.state == Request.PREFILLING]
        growing += [(request, request.computed + tokens) for request, tokens in running]
        growing.sort(key=_admission)
        for request, tokens in growing:
            self._grow(request, tokens)
        return self._admit(batch)

    def serve_preempting(self, batch: Batch) -> int:
        """The same where memory is short: a victim lets go when the next request finds too few blocks. O(n).

        What a victim was given earlier in the step is cached although it is never computed; vLLM does the same.
        """
        context, decodes = self._view.context_tokens, batch.decodes
        if decodes is None:
            decodes = [request for request in self._view.decoding_requests() if request not in batch.preempted]
        growing = [(request, context(request) + 1) for request in decodes]
        running = [(request, tokens) for request, tokens in batch.chunks if request.state != Request.WAITING]
        growing += [(request, context(request) + tokens) for request, tokens in (*running, *batch.undone)]
        growing.sort(key=_admission)
        victims = iter(batch.preempted)
        for request, tokens in growing:
            while self.pool.lacks(request, tokens) and (victim := next(victims, None)) is not None:
                self.pool.release(victim)
            self._grow(request, tokens)
        for request in victims:
            self.pool.release(request)
        return self._admit(batch)

    def coasted(self, steps: int) -> None:
        """See `ContentMemory`; a block is entered in the step that fills it, so none passes unserved."""
        raise AssertionError(f"{steps} steps passed unserved")

    def held_blocks(self, running: Iterable[Request]) -> int:
        """See `ContentMemory`."""
        return len({block for request in running for block in self.pool.table(request)})

    def in_order(self, finishing: Sequence[Request]) -> Sequence[Request]:
        """Who comes first in vLLM's running list has its blocks reused first."""
        return sorted(finishing, key=lambda request: request.admission)

    def release(self, request: Request) -> None:
        """See `ContentMemory`."""
        if self.pool.holds(request):
            self.pool.release(request)

    def picture(self, holders: Sequence[Request]) -> Hashable:
        """See `ContentMemory`."""
        return self.pool.picture(holders)

    def _admit(self, batch: Batch) -> int:
        found = 0
        for request, tokens in batch.chunks:
            if request.state == Request.WAITING:
                request.computed = self.pool.admit(request)
                found += request.computed
                if request.first_scheduled < 0:
                    request.cached_tokens = request.computed
                self._grow(request, request.computed + tokens)
        return found

    def _grow(self, request: Request, tokens: int) -> None:
        if self.pool.lacks(request, tokens):
            raise PolicyError(f"{self._name} planned more KV-cache blocks than were free")
        self.pool.grow(request, tokens)


def _admission(growing: tuple[Request, int]) -> int:
    return growing[0].admission
