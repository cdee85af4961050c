"""Request-level batching as in FasterTransformer, the baseline of Orca (Yu et al., OSDI'22) and one of Sarathi-Serve's
schedulers (`sarathi/core/scheduler/faster_transformer_scheduler.py`).

A batch of whole prompts is admitted when nobody runs any more, first come first served, and decodes until its last
request has ended; the seat of one that ends earlier stays empty. Memory for the model's longest sequence is reserved
for each request, so nothing is ever preempted.

`padding` adds what FasterTransformer computes for nothing (v5.0, `models/multi_gpu_gpt/ParallelGpt.cc`,
`ParallelGpt::forward`): the prompts of a batch are as long as the longest, and each step decodes every sequence of the
batch, those that have ended too, at that length until all have. Orca's section 3 blames it for the same.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from policies._memory import whole_prompts
from simulator.core import DECODES_UNTIL_ARRIVAL, Batch, Padding, Request, View
from simulator.policy import Planner, PolicyBase, Remembering
from simulator.promises import Promises


@dataclass(frozen=True)
class Static(PolicyBase):
    """`max_batch_size` counts the requests that start together; `padding`: whether batches cost what padded ones do."""

    max_batch_size: Annotated[int, Ge(1)] = 64
    max_model_len: Annotated[int, Ge(1)] = 16384
    padding: bool = False

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

    def start(self, view: View, *, contents: bool) -> Planner:  # noqa: ARG002 - the interface
        """The policy itself, or who remembers the batches' shapes."""
        return _Padded(self) if self.padding else self

    def plan(self, view: View) -> Batch | None:
        """The decodes of the batch, or when there are none the next batch; O(admitted)."""
        if view.decodes.count:
            return DECODES_UNTIL_ARRIVAL
        if len(view.running) > view.elsewhere:  # their last tokens are under way
            return None
        chunks = whole_prompts(self, view, view.free_blocks, self.max_batch_size)
        return Batch(chunks) if chunks else None


@dataclass(frozen=True, eq=False)
class _Shape:
    """Sequences of a batch, and the tokens of its longest prompt."""

    sequences: int
    longest: int


class _Padded(Remembering):
    """Plans as `policy` does, at the price of padded batches. O(running) a step."""

    def __init__(self, policy: Static) -> None:
        self._policy = policy
        self._shapes: dict[Request, _Shape] = {}

    def plan(self, view: View) -> Batch | None:
        """See `Static.plan`."""
        batch = self._policy.plan(view)
        if batch is None:
            return None
        if batch.chunks:
            shape = _Shape(len(batch.chunks), max(tokens for _, tokens in batch.chunks))
            self._shapes.update((request, shape) for request, _ in batch.chunks)
            return Batch(batch.chunks, padding=Padding(chunks=[(0, shape.longest)] * shape.sequences))
        # In a pipeline several batches can come to decode in one step; a batch has generated as much for each of its
        # requests, this step's token included.
        generated = {
            self._shapes[request]: view.context_tokens(request) + 1 - request.prompt_tokens
            for request in view.decoding_requests()
        }
        contexts = [(shape.sequences, shape.longest + tokens) for shape, tokens in generated.items()]
        sequences = sum(count for count, _ in contexts)
        context = sum(count * length for count, length in contexts)
        return Batch(padding=Padding(sequences, context, max(length for _, length in contexts)))

    def ended(self, request: Request) -> None:
        """Its batch goes on with its seat."""
        self._shapes.pop(request, None)
