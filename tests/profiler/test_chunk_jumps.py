"""Jumps of a chunk's attention from one token to the next."""

import pandas as pd

from profiler.chunk_jumps import chunk_jumps, jump_lines


def rows(*chunks: tuple[int, int, float]) -> pd.DataFrame:
    """Attention rows of one chunk each: (tokens, context, microseconds)."""
    places = [{"prefill_tokens": tokens, "prefill_context": before, "time_us": time} for tokens, before, time in chunks]
    return pd.DataFrame(places).assign(operator="attention", prefills=1, decodes=0)


def test_the_largest_first_with_its_range_over_contexts() -> None:
    """Only neighbours at the same context are compared."""
    measured = rows(
        (256, 0, 10.0), (257, 0, 10.5), (256, 4096, 20.0), (257, 4096, 35.0), (257, 8192, 60.0),
        (512, 0, 20.0), (513, 0, 15.0), (600, 0, 1.0),
    )  # fmt: skip
    largest, other = chunk_jumps(measured)
    assert (largest.tokens, largest.least_context, largest.most_context) == (256, 0, 4096)
    assert [round(growth, 6) for growth in largest.growths] == [0.05, 0.75]
    assert (other.tokens, other.growths) == (512, (-0.25,))
    assert jump_lines(measured) == [
        "Attention of one chunk, 256 to 257 tokens: +5 to +75 %, depending on what is before it"
        " (0 to 4,096 KV entries)."
    ]


def test_nothing_is_said_without_neighbours() -> None:
    """Nor of chunks beside decodes or several at once."""
    assert jump_lines(rows((256, 0, 10.0), (258, 0, 10.5))) == []
    assert jump_lines(rows((256, 0, 10.0), (257, 0, 10.5)).assign(decodes=4)) == []
