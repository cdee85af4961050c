"""Orca's iteration-level scheduling with selective batching (Yu et al., OSDI'22, Algorithm 1).

Every iteration runs one token of each decoding request and the whole prompts of newly admitted ones, first come first
served. Memory for a request's longest possible sequence is reserved at admission, so nothing is ever preempted. The
paper reserves prompt + output of the request; `reservation: max_model_len` reserves the model's longest sequence, as
Sarathi-Serve's Orca baseline does (`OrcaScheduler`).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from policies._memory import whole_prompts
from simulator.core import DECODES_UNTIL_ARRIVAL, DECODES_UNTIL_FINISH, Batch, Request, View
from simulator.policy import PolicyBase
from simulator.promises import Promises


@dataclass(frozen=True)
class Orca(PolicyBase):
    """`max_prefills_per_batch`: 0 = any number; 1 = SARATHI's "Orca best case"."""

    max_batch_size: Annotated[int, Ge(1)] = 64
    reservation: Literal["request", "max_model_len"] = "request"
    max_model_len: Annotated[int, Ge(1)] = 16384
    max_prefills_per_batch: Annotated[int, Ge(0)] = 0

    def reserve_tokens(self, request: Request) -> int:
        """Slots for the longest sequence the request may become."""
        if self.reservation == "request":
            return request.prompt_tokens + request.target_tokens
        return self.max_model_len

    @property
    def model_length(self) -> int | None:
        """No sequence outgrows what is reserved for it."""
        return self.max_model_len

    @property
    def promises(self) -> Promises:
        """First come, first served, and memory for all of a request before it begins."""
        return Promises(
            max_prefills=self.max_prefills_per_batch or None,
            sequence_limit=self.max_batch_size,
            never_preempts=True,
            work_conserving=True,
            starvation_free=True,
        )

    def plan(self, view: View) -> Batch | None:
        """All decodes, and waiting prompts in order up to the first that does not fit; O(admitted)."""
        decoding = view.decodes.count
        if not view.waiting:
            return DECODES_UNTIL_ARRIVAL if decoding else None
        slots = self.max_batch_size - len(view.running) + view.elsewhere
        if self.max_prefills_per_batch:
            slots = min(slots, self.max_prefills_per_batch)
        chunks = whole_prompts(self, view, view.free_blocks - view.decode_blocks, slots)
        if chunks:
            holds = Batch.ONCE if self.max_prefills_per_batch else Batch.UNTIL_FINISH  # places and memory are taken
            return Batch(chunks, holds=Batch.UNTIL_ARRIVAL if view.admits_all(chunks) else holds)
        return DECODES_UNTIL_FINISH if decoding else None
