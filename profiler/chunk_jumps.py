"""Where one token more of a chunk changes what its attention costs: from pairs of rows of t and t + 1 tokens."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True, slots=True)
class ChunkJump:
    """From `tokens` to `tokens` + 1: the relative growths after each context where both were measured, ascending.

    `least_context` and `most_context`: the fewest and most KV entries before the chunk among these.
    """

    tokens: int
    growths: tuple[float, ...]
    least_context: int
    most_context: int

    @property
    def size(self) -> float:
        """The largest change at any context."""
        return max(abs(self.growths[0]), abs(self.growths[-1]))


def chunk_jumps(rows: pd.DataFrame) -> list[ChunkJump]:
    """Of single chunks without decodes, the largest first; empty where no two neighbours were measured."""
    alone = rows[(rows["operator"] == "attention") & (rows["prefills"] == 1) & (rows["decodes"] == 0)]
    times = alone.groupby(["prefill_tokens", "prefill_context"])["time_us"].median().unstack()
    jumps = []
    for tokens in times.index:
        if tokens + 1 in times.index:
            growths = (times.loc[tokens + 1] / times.loc[tokens] - 1).dropna()
            if len(growths):
                contexts = growths.index
                ordered = tuple(sorted(float(growth) for growth in growths))
                jumps.append(ChunkJump(int(tokens), ordered, int(contexts.min()), int(contexts.max())))
    return sorted(jumps, key=lambda jump: -jump.size)


def jump_lines(rows: pd.DataFrame) -> list[str]:
    """One sentence on the largest jump, none where nothing can be said."""
    jumps = chunk_jumps(rows)
    if not jumps:
        return []
    first = jumps[0]
    low, high = (f"{growth * 100:+.0f}" for growth in (first.growths[0], first.growths[-1]))
    span = f"{low} %" if low == high else f"{low} to {high} %"
    return [
        f"Attention of one chunk, {first.tokens:,} to {first.tokens + 1:,} tokens: {span}, depending on what is before"
        f" it ({first.least_context:,} to {first.most_context:,} KV entries)."
    ]
