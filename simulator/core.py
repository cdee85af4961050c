"""The vocabulary of the simulator: what a request is, what one iteration runs, what a policy sees.

A policy (`simulator.policy`) is shown a `View` and returns the `Batch` that the next iteration runs; the scheduler
applies it. A request is *waiting* until a batch first gives it tokens, then *running* until its last output: first
*prefilling* (its KV cache holds `computed` of `known` tokens), then *decoding* (one token an iteration, all decodes
together as one cohort), and with several steps in flight *finishing* while its last token is still under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simulator.decodes import Decodes
    from simulator.memory import ContentMemory
    from simulator.prefix import PrefixBlocks
    from simulator.queues import WaitingQueue


WAITING, PREFILLING, DECODING, FINISHING, ENDED = range(5)
"""States of a request; also attributes of `Request`, where looking them up takes longer."""


class Request:
    """One request: facts of the trace, and progress that the scheduler alone writes.

    Counts are tokens. `known` = prompt + generated tokens; `computed` = tokens whose KV entries exist. While the
    request decodes these two are not updated (that would touch every decode in every iteration): ask
    `View.context_tokens`. `generated` likewise holds the count at the last change of state. `target_tokens` is the
    output that will be generated: `output_tokens`, or less where the model's longest sequence cuts it. `max_tokens` is
    what the client declared as the most, and `ignore_eos` whether nothing else ends it. `keys[i]` stands for the tokens
    of the i-th full block and all before it: equal keys, equal contents. `admission` numbers admissions;
    `cached_tokens` were found cached at the first.
    """

    __slots__ = (
        "admission",
        "arrival_ns",
        "birth",
        "cached_tokens",
        "cohort",
        "computed",
        "end_clock",
        "first_scheduled",
        "first_token",
        "generated",
        "ignore_eos",
        "index",
        "keys",
        "known",
        "last_token",
        "max_tokens",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "reserved_blocks",
        "start_clock",
        "state",
        "target_tokens",
    )

    WAITING, PREFILLING, DECODING, FINISHING, ENDED = WAITING, PREFILLING, DECODING, FINISHING, ENDED

    def __init__(self, index: int, arrival_ns: int, prompt_tokens: int, output_tokens: int, priority: int = 0) -> None:
        self.index = index
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.output_tokens = self.max_tokens = output_tokens
        self.ignore_eos = True
        self.priority = priority
        self.keys: Sequence[Hashable] = ()
        self.admission = 0
        self.cached_tokens = 0
        self.state = Request.WAITING
        self.known = prompt_tokens
        self.computed = 0
        self.generated = 0
        self.target_tokens = output_tokens
        self.reserved_blocks = 0
        self.preemptions = 0
        self.first_scheduled = -1
        self.first_token = -1
        self.last_token = -1
        self.cohort: Decodes | None = None
        self.birth = 0
        self.start_clock = 0
        self.end_clock = 0

    def __repr__(self) -> str:
        return f"request {self.index} ({self.prompt_tokens} + {self.output_tokens} tokens)"


class Padding(NamedTuple):
    """What the GPU computes in a step in place of the batch's own tokens, as arguments of `StepCosts.step_ns`."""

    decodes: int = 0
    decode_context: int = 0
    """Sum of the context lengths after the step."""
    longest: int = 0
    chunks: Sequence[tuple[int, int]] = ()
    """(context before, tokens)."""

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.decodes + sum(tokens for _, tokens in self.chunks)


class Batch:
    """What one iteration runs.

    `decodes`: None for every decoding request (the usual case), empty for none (both O(1)), or the ones that decode in
    this iteration (O(n) in running requests).
    `chunks`: `(request, tokens)` for prefilling requests, and for waiting ones, which are thereby admitted, in this
    order. `preempted`: running requests that lose their KV cache and wait again, in order of preemption. `undone`:
    `(request, tokens)` that such a request had been given in this very step; only prefix caches remember it.
    `rejected`: `(request, reason)` for waiting requests that are dropped now. `in_vain`: finishing requests that decode
    once more, since the engine does not know yet that they have their last token: time and memory for nothing. `holds`
    says until when the policy would then plan every decode and nothing else, see `DECODES_UNTIL_ARRIVAL`. `padding`:
    what the step costs, where that is not what its tokens cost; without a promise of `holds`, as later steps would not
    be padded.
    """

    __slots__ = ("chunks", "decodes", "holds", "in_vain", "padding", "preempted", "rejected", "undone")

    ONCE, UNTIL_FINISH, UNTIL_ARRIVAL = range(3)

    def __init__(
        self,
        chunks: Sequence[tuple[Request, int]] = (),
        decodes: Sequence[Request] | None = None,
        preempted: Sequence[Request] = (),
        undone: Sequence[tuple[Request, int]] = (),
        rejected: Sequence[tuple[Request, str]] = (),
        *,
        in_vain: Sequence[Request] = (),
        holds: int = ONCE,
        padding: Padding | None = None,
    ) -> None:
        self.chunks = chunks
        self.decodes = decodes
        self.preempted = preempted
        self.undone = undone
        self.rejected = rejected
        self.in_vain = in_vain
        self.holds = holds
        self.padding = padding

    def unpromised(self) -> Batch:
        """The same without a promise of what follows."""
        parts = self.chunks, self.decodes, self.preempted, self.undone, self.rejected
        return Batch(*parts, in_vain=self.in_vain, padding=self.padding)


DECODES_ONLY = Batch()
"""Every decode and no prefill."""

DECODES_UNTIL_ARRIVAL = Batch(holds=Batch.UNTIL_ARRIVAL)
"""The same, and a promise that `plan` would say so again until a request arrives or fewer blocks are free than would
leave one over after the iteration: right where nobody waits or prefills. The iterations that follow are run without
asking, which is many times as fast. A batch with chunks may promise this for what follows it: right where
`View.holds_after` says so."""

DECODES_UNTIL_FINISH = Batch(holds=Batch.UNTIL_FINISH)
"""The same, but only until a request finishes: right where those that wait are kept out by what others hold, and after
chunks that complete all prompts and leave no place for those that wait."""


class View:
    """What a policy may read. Attributes are O(1); what costs more says so. A policy never writes to it."""

    __slots__ = (
        "block_size",
        "decode_blocks",
        "decodes",
        "finishing",
        "free_blocks",
        "last_prefills",
        "memory",
        "now_ns",
        "prefilling",
        "prefixes",
        "running",
        "stages",
        "total_blocks",
        "under_way",
        "waiting",
    )

    def __init__(self, block_size: int, total_blocks: int, decodes: Decodes, waiting: WaitingQueue) -> None:
        self.block_size = block_size
        self.total_blocks = total_blocks
        """Blocks that can ever be handed out."""
        self.free_blocks = total_blocks
        self.decodes = decodes
        self.decode_blocks = 0
        """Blocks that are opened if every decode gets one token in this iteration."""
        self.waiting = waiting
        """Requests not yet running, in the policy's order: `len`, iteration from the head."""
        self.running: dict[Request, None] = {}
        """All running requests in order of admission, a resumed one at the end."""
        self.prefilling: dict[Request, None] = {}
        """Running requests whose prompt is not complete, in order of admission."""
        self.finishing: deque[tuple[int, list[Request]]] = deque()
        """Steps under way that sample somebody's last token, by number, and whose: with several steps in flight."""
        self.under_way = 0
        """Steps that are scheduled and not complete when this one is planned."""
        self.last_prefills = 0
        """Prefill chunks of the step before this one."""
        self.now_ns = 0
        self.stages = 1
        """Pipeline stages, and so micro-batches that are under way side by side."""
        self.memory: ContentMemory | None = None
        """KV memory that knows what its blocks hold, a planner's own or vLLM's; None where blocks are only counted."""
        self.prefixes: PrefixBlocks | None = None
        """The pool with block identities; None unless the policy caches prefixes and the trace has some."""

    @property
    def decoding(self) -> int:
        """Requests that can decode in this iteration."""
        return self.decodes.count

    @property
    def elsewhere(self) -> int:
        """Running requests that a micro-batch under way keeps out of reach of this iteration; 0 on one stage."""
        return len(self.running) - self.decodes.count - len(self.prefilling) if self.stages > 1 else 0

    def in_reach(self, request: Request) -> bool:
        """Whether a running `request` is in no other micro-batch under way."""
        if request.state == DECODING:
            return request.cohort is self.decodes
        return self.stages == 1 or request in self.prefilling

    def context_tokens(self, request: Request) -> int:
        """KV entries of `request` so far."""
        if request.state == DECODING:
            assert request.cohort is not None
            return request.birth + request.cohort.clock
        return request.computed

    def held_blocks(self, request: Request) -> int:
        """Blocks that `request` holds; 0 while it waits."""
        if request.state == Request.WAITING:
            return 0
        return max(request.reserved_blocks, -(-self.context_tokens(request) // self.block_size))

    def blocks_for(self, request: Request, tokens: int) -> int:
        """Further blocks that `request` needs for its next `tokens` tokens."""
        needed = -(-(self.context_tokens(request) + tokens) // self.block_size)
        return max(0, needed - self.held_blocks(request))

    def completes_prompts(self, chunks: Sequence[tuple[Request, int]]) -> bool:
        """Whether no prompt is in progress once these chunks have run. O(chunks)."""
        running = 0
        for request, tokens in chunks:
            if tokens != request.known - request.computed:
                return False
            running += request.state == PREFILLING
        return running == len(self.prefilling)

    def holds_after(self, chunks: Sequence[tuple[Request, int]], sequence_limit: int) -> int:
        """Until when only decodes follow these chunks, where at most `sequence_limit` requests run. O(chunks)."""
        if not self.completes_prompts(chunks):
            return Batch.ONCE
        if self.admits_all(chunks):
            return Batch.UNTIL_ARRIVAL
        full = len(self.running) + len(chunks) - len(self.prefilling) >= sequence_limit
        return Batch.UNTIL_FINISH if full else Batch.ONCE

    def admits_all(self, chunks: Sequence[tuple[Request, int]]) -> bool:
        """Whether nobody waits once these chunks, among them all prompts in progress, have run."""
        return len(chunks) == len(self.prefilling) + len(self.waiting)

    def decoding_requests(self) -> list[Request]:
        """Who can decode in this iteration, in order of admission; O(n) in running requests."""
        cohort = self.decodes
        return [request for request in self.running if request.state == DECODING and request.cohort is cohort]
