"""How TensorRT-LLM divides a token budget among prompts in chunks (`PyMicroBatchScheduler`: `_chunk_fcfs`,
`_chunk_equal_progress`, main at commit 002f3cc3), without reused blocks and draft tokens.

Both take what is left of each prompt, the tokens `left` for all, the chunk unit, and the `longest` chunk of one prompt;
they return a chunk for each prompt, which may be 0.
"""

from collections.abc import Sequence


def first_come(rests: Sequence[int], left: int, unit: int, longest: int) -> list[int]:
    """As much as there is for each in turn, in whole units unless it is all; who comes behind gets of what is left."""
    sizes = []
    for rest in rests:
        room = min(left, longest)
        sizes.append(rest if rest <= room else room // unit * unit)
        left -= sizes[-1]
    return sizes


def equal_progress(rests: Sequence[int], left: int, unit: int, longest: int) -> list[int]:
    """A unit for each in turn, round after round. Who once lacks room for the next one will always lack it."""
    sizes = [0] * len(rests)
    growing = list(range(len(rests)))
    while growing:
        grown = []
        for place in growing:
            more = min(unit, rests[place] - sizes[place])
            if 0 < more <= left and sizes[place] + more <= longest:
                sizes[place] += more
                left -= more
                grown.append(place)
        growing = grown
    return sizes
