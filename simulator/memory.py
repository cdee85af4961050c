"""KV memory whose blocks have contents: what the scheduler asks of a prefix cache, of whatever engine."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from simulator.core import Batch, Request


class ContentMemory(Protocol):
    """Blocks of one engine that can be found again by what they hold.

    `free_blocks` may count cached blocks that nobody holds. `by_residue`: whether the cohorts of decodes have to say
    which members open a block in a step (`Decodes.groups`). `coasts`: whether it can catch up with steps of decodes
    that passed without `serve`.
    """

    by_residue: bool
    coasts: bool

    @property
    def free_blocks(self) -> int: ...

    def serve(self, batch: Batch) -> int:
        """Hand out the blocks of a step, before anything of it is booked; who is admitted starts with what is found.

        Sets `computed` of the admitted (and `cached_tokens` at the first admission); returns the tokens found.
        """
        ...

    def serve_preempting(self, batch: Batch) -> int:
        """The same for a step that preempts; the victims let go in here."""
        ...

    def coasted(self, steps: int) -> None:
        """So many steps of all decodes have passed, the last of which has brought the clock where it is."""
        ...

    def held_blocks(self, running: Iterable[Request]) -> int:
        """Blocks that these requests hold, each counted once. O(blocks); for checks."""
        ...

    def in_order(self, finishing: Sequence[Request]) -> Sequence[Request]:
        """Those who finish with one step, in the order in which they let go."""
        ...

    def release(self, request: Request) -> None:
        """Let go of all that `request` holds, if anything: it has finished, was preempted or dropped."""
        ...

    def picture(self, holders: Sequence[Request]) -> Hashable:
        """Everything that decides about later steps. O(blocks)."""
        ...
