"""How an attention kernel cuts a batch into tiles: what is the same whatever a tile costs.

A tile is some rows of queries of one head against all keys of one request, or a part of the keys where the kernel
splits them. Tiles are handed to the GPU's slots in order, request by request or head by head.

- `vllm-flash-attn` (FA3, paged): tiles of 128 rows, the query heads of a KV head packed into rows; of 64 where no
  request has more. It splits the keys of each request by its share of all tiles, as long as the longest chunk alone
  fills less than 80 % of the multiprocessors.
- `flash-attn` (FA2, paged): tiles of 64 rows, each query head on its own, keys never split. Decodes alone of a model
  with grouped queries are packed, and all split alike if the batch fills less than 80 % of the slots.

Sources: flash-attention's `hopper/heuristics.h`, `tile_size.h` and `flash_prepare_scheduler.cu` for FA3,
`csrc/flash_attn/flash_api.cpp` and `flash_fwd_launch_template.h` for FA2. Other backends whose
name ends with fa3 are taken for FA3, all others for FA2.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from simulator.models import ModelShape

TILE_KEYS = 128
UNSPLIT = float("inf")
FULL = 0.8
"""Share of the slots from which on keys are not split."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a kernel runs: `heads` tiles for each `tokens` new tokens of a request, on `slots` slots.

    `dynamic_splits`, `uniform_splits`: how keys are split, as told above. `by_head`: tiles are handed out head by head,
    unless keys are split, instead of request by request; a request with fewer tokens than the longest then gets tiles
    that find nothing to do.
    """

    heads: int
    tokens: int
    slots: int
    dynamic_splits: bool = False
    uniform_splits: bool = False
    by_head: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """The forms of a kernel on one GPU and model shard: for decodes `alone`, and `mixed` with chunks."""

    multiprocessors: int
    alone: Form
    mixed: Form

    def splits(self, form: Form, tiles: int, longest: int) -> int:
        """Into how many parts the keys of the longest request may be cut; 1: none is.

        `tiles`: of the longest chunk (dynamic) or of the batch (uniform), before splitting.
        """
        if not (form.dynamic_splits or form.uniform_splits):
            return 1
        return _splits(tiles, form.slots, ceil(longest / TILE_KEYS), form.uniform_splits)

    def way_of(self, decodes: int) -> int:
        """How decodes alone run: 0 with keys split where that pays, 1 all tiles at once, 2 one after another."""
        form = self.alone
        tiles = form.heads * decodes
        if form.dynamic_splits or (form.uniform_splits and tiles < FULL * form.slots):
            return 0
        return 1 if tiles <= form.slots else 2

    def blocks_a_slot(self, form: Form, blocks: float) -> float:
        """Key blocks of a tile above which a request is split dynamically: the mean of a slot and a tenth more."""
        return max(ceil(blocks * 1.1 * form.heads / form.slots), 1)


@lru_cache(maxsize=65536)
def _splits(tiles: int, slots: int, key_blocks: int, uniform: bool) -> int:
    """The smallest number of splits that fills the slots within 15 % as well as the best does."""
    if tiles >= FULL * slots or (key_blocks <= 4 and not uniform):
        return 1
    efficiency = {}
    for splits in range(1, min(128, slots, key_blocks) + 1):
        if uniform and splits > 1 and ceil(key_blocks / splits) == ceil(key_blocks / (splits - 1)):
            continue  # cuts no shorter parts than one fewer
        waves = tiles * splits / slots
        efficiency[splits] = waves / ceil(waves)
    best = max(efficiency.values())
    return next(splits for splits, reached in efficiency.items() if reached >= 0.85 * best)


def kernel_of(backend: str, shape: ModelShape, multiprocessors: int) -> Kernel:
    """The kernel of a cost table; `shape` is that of the tensor-parallel shard."""
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    group = max(heads // kv_heads, 1)
    if backend == "vllm-flash-attn" or backend.endswith("fa3"):
        alone = Form(kv_heads, max(64 // group, 1), multiprocessors, dynamic_splits=True)
        mixed = Form(kv_heads, max(128 // group, 1), multiprocessors, dynamic_splits=True)
        return Kernel(multiprocessors, alone, mixed)
    mixed = Form(heads, 64, 2 * multiprocessors, by_head=True)
    packed = Form(kv_heads, 64, 2 * multiprocessors, uniform_splits=True, by_head=True)
    return Kernel(multiprocessors, packed if group > 1 else mixed, mixed)
