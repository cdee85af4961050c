"""Decode batches that are priced alike: of like number, mean context, and how far the longest is above the mean."""

SPREAD_ENDS: list[int] = [round(100 * 1.3 ** (place + 0.5)) for place in range(16)]
"""Longest over mean, in per cent, where one class of spread ends and the next begins.

The class of contexts is bisect_right(SPREAD_ENDS, longest * decodes * 100 // sum): in integers, so that it is the same
wherever it is asked."""
SPREADS = [1.3**place for place in range(17)]
"""Longest over mean that stands for each class."""
MEANS = sorted({round(16 * 2 ** (place / 3)) for place in range(50)})
"""Mean contexts that are replayed."""
EXCESSES = [0, *(round(64 * 1.5**place) for place in range(27))]
"""Tokens by which the longest exceeds the mean for which decodes alone are replayed.

As contexts grow by the same in each step, this stays as it is."""


def count_class(decodes: int, exact: int) -> int:
    """The number of decodes that is replayed: up to `exact` each, of larger ones every eighth of a power of two."""
    if decodes <= exact:
        return decodes
    step = 1 << max(decodes.bit_length() - 4, 0)
    return decodes // step * step
