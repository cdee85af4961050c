"""What the tiles of an attention kernel cost on one GPU: twenty constants, fitted to a table's rows."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Le

from simulator.attention.replay import Rate

Positive = Annotated[float, Gt(0), Le(1e9)]
NotNegative = Annotated[float, Ge(0), Le(1e9)]


@dataclass(frozen=True, slots=True)
class DecodeTimes:
    """A decode tile, by block of keys; see `replay.Rate`. Microseconds, `start` in blocks."""

    latency_us: Positive
    bandwidth_us: Positive
    start_blocks: NotNegative
    sharpness: Annotated[float, Ge(0.5), Le(20)] = 2.0
    shared: NotNegative = 0.0

    def rate(self, bandwidth_share: float = 1.0) -> Rate:
        """With `bandwidth_share` of the bytes coming from memory, the others from the L2 cache."""
        return Rate(
            self.latency_us, self.bandwidth_us * bandwidth_share, self.start_blocks, self.sharpness, self.shared
        )


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Microseconds of one call in one layer.

    - `fixed_us`: launch and end.
    - `alone`, `mixed`: a decode's tiles in the two forms of the kernel.
    - `chunk_us`, `chunk_start`: a block of a chunk's tile, and what a tile costs before its first, in blocks;
      `chunk_shared`: how much a block takes longer where two tiles share a multiprocessor.
    - `combine_us`, `combine_split_us`, `combine_part_us`: the second kernel that joins split keys, what it adds a
      split, and a part of a token.
    - `empty_us`: a tile with nothing to do.
    - `cached_tokens`: KV entries that the L2 cache holds for the query heads of a group that read them in turn.
    - `reorder_us`: bringing the queries of a group together, where the caller does that for two decodes or more.
    - `error`: relative errors over the rows that the constants were fitted to.
    """

    fixed_us: Positive
    alone: DecodeTimes
    mixed: DecodeTimes
    chunk_us: Positive
    chunk_start: NotNegative
    chunk_shared: NotNegative = 0.0
    combine_us: NotNegative = 0.0
    combine_split_us: NotNegative = 0.0
    combine_part_us: NotNegative = 0.0
    empty_us: NotNegative = 0.0
    cached_tokens: NotNegative = 0.0
    reorder_us: NotNegative = 0.0
    error: dict[str, float] = field(default_factory=dict)

    def join_us(self, splits: int, parts: int) -> float:
        """Microseconds of joining keys that were cut into at most `splits`, `parts` over all tokens."""
        if splits == 1:
            return 0.0
        return self.combine_us + self.combine_split_us * splits + self.combine_part_us * parts

    def block_us(self, tiles: float, multiprocessors: int) -> float:
        """Microseconds of a block of a chunk's tile; with fewer tiles than multiprocessors none shares one."""
        return self.chunk_us if tiles > multiprocessors else self.chunk_us / (1 + self.chunk_shared)
