"""Request-level batching as in FasterTransformer, the baseline of Orca (Yu et al., OSDI'22) and one of Sarathi-Serve's
schedulers (`sarathi/core/scheduler/faster_transformer_scheduler.py`).

A batch of whole prompts is admitted when nobody runs any more, first come first served, and decodes until its last
request has ended; the seat of one that ends earlier stays empty. Memory for the model's longest sequence is reserved
for each request, so nothing is ever preempted.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from policies._memory import whole_prompts
from simulator.core import DECODES_UNTIL_ARRIVAL, Batch, PolicyBase, Request, View
from simulator.promises import Promises


@dataclass(frozen=True)
class Static(PolicyBase):
    """`max_batch_size` counts the requests that start together."""

    max_batch_size: Annotated[int, Ge(1)] = 64
    max_model_len: Annotated[int, Ge(1)] = 16384

    def reserve_tokens(self, _: Request) -> int:
        """Slots for the model's longest sequence."""
        return self.max_model_len

    @property
    def model_length(self) -> int | None:
        """No sequence outgrows what is reserved for it."""
        return self.max_model_len

    @property
    def promises(self) -> Promises:
        """First come, first served, and memory for the longest sequence before it begins."""
        return Promises(
            sequence_limit=self.max_batch_size, never_preempts=True, work_conserving=True, starvation_free=True
        )

    def plan(self, view: View) -> Batch | None:
        """The decodes of the batch, or when there are none the next batch; O(admitted)."""
        if view.decodes.count:
            return DECODES_UNTIL_ARRIVAL
        if len(view.running) > view.elsewhere:  # their last tokens are under way
            return None
        chunks = whole_prompts(self, view, view.free_blocks, self.max_batch_size)
        return Batch(chunks) if chunks else None
