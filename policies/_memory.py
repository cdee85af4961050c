"""How Sarathi-Serve's block managers (`sarathi/core/block_space_manager`) hand out memory: what several policies share.

Either the longest possible sequence is reserved at admission and nothing is ever preempted (`whole_prompts`), or the
prompt's blocks are taken at admission and one more whenever a decode fills its last (`PromptBlocks`, `decode_step`).
Unlike there, a preempted request keeps its generated tokens (vLLM's recompute) instead of starting its output over.
"""

from collections import deque
from collections.abc import Sequence

from simulator.core import DECODES_ONLY, DECODES_UNTIL_ARRIVAL, DECODES_UNTIL_FINISH, Batch, Request, View
from simulator.policy import PolicyBase


def whole_prompts(policy: PolicyBase, view: View, free: int, slots: int) -> list[tuple[Request, int]]:
    """Up to `slots` waiting prompts, whole and in order, while what the policy reserves for them fits in `free`."""
    chunks: list[tuple[Request, int]] = []
    for request in view.waiting:
        if len(chunks) >= slots:
            break
        free -= -(-policy.reserve_tokens(request) // view.block_size)
        if free < 0:
            break
        chunks.append((request, request.known))
    return chunks


class PromptBlocks(PolicyBase):
    """Admission takes the blocks of the whole prompt and leaves the watermark free."""

    def reserve_tokens(self, request: Request) -> int:
        """The whole prompt (and what a preempted request had generated), even if only a chunk runs."""
        return request.known

    def rejects(self, request: Request, view: View) -> str | None:
        """A prompt that leaves less than the watermark free can never be admitted."""
        blocks, usable = -(-request.known // view.block_size), view.total_blocks - watermark(view)
        if blocks > usable:
            return f"prompt needs {blocks} KV-cache blocks at once, {usable} of {view.total_blocks} can be admitted"
        return None


def watermark(view: View) -> int:
    """Blocks that admission leaves free: 1 % of the pool, rounded down."""
    return view.total_blocks // 100


def prompts_alone(view: View, chunks: list[tuple[Request, int]], rejected: Sequence[tuple[Request, str]] = ()) -> Batch:
    """A step of these chunks and no decode. Only decodes follow if it leaves no prompt over."""
    over = view.completes_prompts(chunks) and len(chunks) + len(rejected) == len(view.prefilling) + len(view.waiting)
    return Batch(chunks, (), rejected=rejected, holds=Batch.UNTIL_ARRIVAL if over else Batch.ONCE)


def decode_step(view: View, *, kept_out: bool = False) -> Batch | None:
    """A step of decodes alone, or None if nobody decodes. O(1) while more blocks are free than the decodes open.

    `kept_out`: no prompt is in progress, and who waits is kept out by what others hold.
    """
    if not view.decodes.count:
        return None
    if view.free_blocks <= view.decode_blocks:
        decodes, preempted, _ = make_room(view)
        return Batch((), decodes, preempted)
    if not view.waiting and not view.prefilling:
        return DECODES_UNTIL_ARRIVAL
    return DECODES_UNTIL_FINISH if kept_out else DECODES_ONLY


def make_room(view: View) -> tuple[list[Request], list[Request], int]:
    """Who decodes, who is preempted for it, and the blocks that are free afterwards; O(n log n) in running requests.

    Decodes take their turn in order of arrival. Each asks for a free block, even if it would not take one
    (`can_append_slot`); while there is none, the last running request is preempted, in the end the asking one itself.
    A prompt in progress that arrived before the asking request is out of reach: its turn is over.
    """
    in_reach = [request for request in view.running if view.in_reach(request)]
    queue = deque(sorted(in_reach, key=lambda request: (request.arrival_ns, request.index)))
    free = view.free_blocks
    decodes: list[Request] = []
    preempted: list[Request] = []
    while queue:
        request = queue.popleft()
        if request.state != Request.DECODING:
            continue
        while free <= 0:
            victim = queue.pop() if queue else request
            preempted.append(victim)
            free += view.held_blocks(victim)
            if victim is request:
                break
        else:
            free -= view.blocks_for(request, 1)
            decodes.append(request)
    return decodes, preempted, free
