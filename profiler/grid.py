"""Which points of each operator are measured, and in which order.

Matrix products run in tiles, so their time climbs in steps: every multiple of 64 up to 1024 tokens and the token after
it are measured, further up the grid is coarser, and `profiler.scan` looks for the steps in between. Attention is
measured over chunk x context, decode batch x context and, because a kernel may do badly on both at once, over mixed
batches. Attention has cliffs of its own where a chunk's tiles no longer fit the multiprocessors at once
(`chunk_sizes`). A coarse pass over all operators comes first, so that a table cut short is coarse rather than lopsided.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from simulator.attention.kernels import Kernel

LINEAR_OPERATORS = ("qkv_proj", "o_proj", "mlp")


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the cost table before it is measured; the columns are those of `simulator.cost_table`."""

    operator: str
    tokens: int = 0
    sequences: int = 0
    prefills: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0
    decodes: int = 0
    decode_context: int = 0
    decode_longest: int = 0

    def __str__(self) -> str:
        if self.operator != "attention":
            return f"{self.operator} of {self.tokens or self.sequences}"
        parts = []
        if self.decodes:
            longest = f" (to {self.decode_longest})" if self.decode_longest else ""
            parts.append(f"{self.decodes} decodes at {self.decode_context}{longest}")
        if self.prefills:
            parts.append(f"{self.prefills} x {self.prefill_tokens} after {self.prefill_context}")
        return "attention of " + " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the grid: tokens of a step, KV entries of one call, and the page they are rounded up to."""

    max_tokens: int = 8192
    max_kv_tokens: int = 700_000
    page_size: int = 16
    most_attention_area: int = 105_000_000  # query x key pairs of one chunk: some 10 ms a call at most


def token_counts(max_tokens: int) -> list[int]:
    """Tokens at which the matrix products are measured before the scan."""
    counts = {1, 2, 4, 8, 16, 24, 32, 48, max_tokens}
    counts |= {*range(64, 1025, 64), *range(65, 1026, 64)}  # at whole tiles alone other kernels may be chosen
    counts |= {*range(1152, 2049, 128), *range(2304, 4097, 256), *range(4608, 8193, 512)}
    return sorted(count for count in counts if count <= max_tokens)


SMOOTH_TOKENS = (
    1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 768, 896, 1024, 1280, 1536, 1792,
    2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
)  # fmt: skip
SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 65, 96, 128, 129, 160, 192, 256, 257, 320, 384, 512, 768, 1024)
COARSE_CHUNKS = (16, 64, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
PREFILL_CONTEXTS = (0, 256, 512, 1024, 2048, 4096, 8192, 16384)
DECODES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
DECODE_CONTEXTS = (16, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
MOST_CELLS = 14  # of a kernel's smallest tiles, whose every edge is measured

LAYER_TOKENS = (2048, 4096, 8192)

_COARSE_TOKENS = {1, 16, 64, 128, 256, 257, 384, 512, 513, 1024, 2048, 4096, 8192}
_COARSE_CHUNKS = {64, 256, 512, 2048, 8192}
_COARSE_CONTEXTS = {0, 128, 512, 1024, 4096}
_COARSE_DECODES = {1, 16, 64, 256, 1024}


def token_points(max_tokens: int) -> Iterator[Point]:
    """Points of the operators whose cost depends on the tokens of the step."""
    for operator in LINEAR_OPERATORS:
        yield from (Point(operator, tokens=count) for count in token_counts(max_tokens))
    for operator in ("elementwise", "embedding"):
        yield from (Point(operator, tokens=count) for count in SMOOTH_TOKENS if count <= max_tokens)


def chunk_sizes(kernel: Kernel) -> list[int]:
    """Tokens of a chunk: a coarse grid, and both sides of where the kernel's schedule changes.

    While its tiles fill less than 80 % of the multiprocessors a kernel may split the keys, differently for each number
    of tiles; later, time jumps where the tiles need another wave.
    """
    form = kernel.mixed
    cells = ceil(0.8 * form.slots / form.heads) if form.dynamic_splits else 0
    step = max(ceil(cells / MOST_CELLS), 1)
    waves = (kernel.multiprocessors * wave // form.heads for wave in range(1, 7))
    edges = {form.tokens * tiles for tiles in (*range(step, cells + 1, step), *waves) if tiles}
    return sorted({*COARSE_CHUNKS, *edges, *(edge + 1 for edge in edges)})


def prefill_points(kernel: Kernel) -> Iterator[Point]:
    """Chunk x context; and several prompts in one call."""
    for tokens, context in product(chunk_sizes(kernel), PREFILL_CONTEXTS):
        yield Point("attention", prefills=1, prefill_tokens=tokens, prefill_context=context)
    for prefills, tokens, context in product((2, 4), (64, 128, 512, 1024), (0, 1024)):
        yield Point("attention", prefills=prefills, prefill_tokens=tokens, prefill_context=context)


def decode_points(kernel: Kernel) -> Iterator[Point]:
    """Decode batch x context, with both sides of where the kernel stops splitting; and contexts that differ."""
    edge = ceil(0.8 * kernel.alone.slots / kernel.alone.heads)
    counts = sorted({*DECODES, *((edge - 1, edge) if kernel.alone.uniform_splits and edge > 1 else ())})
    for decodes, context in product(counts, DECODE_CONTEXTS):
        yield Point("attention", decodes=decodes, decode_context=context)
    for decodes, context, ratio in product((4, 16, 32, 64, 128, 256), (512, 1536), (2.5, 6, 12)):
        if ratio < 0.8 * decodes:
            yield Point("attention", decodes=decodes, decode_context=context, decode_longest=int(ratio * context))


def hybrid_points() -> Iterator[Point]:
    """Decodes together with one chunk, every other time with contexts that differ."""
    chunks = ((0, 64), (0, 256), (0, 512), (0, 1024), (0, 2048), (1024, 256), (4096, 128), (4096, 512))
    for place, (decodes, context, (before, tokens)) in enumerate(
        product((1, 4, 16, 32, 64, 128, 256), (512, 1536), chunks)
    ):
        unlike = decodes > 8 and (place + place // len(chunks)) % 2
        yield Point(
            "attention",
            prefills=1,
            prefill_tokens=tokens,
            prefill_context=before,
            decodes=decodes,
            decode_context=context,
            decode_longest=5 * context if unlike else 0,
        )


def plan(limits: Limits, kernel: Kernel, coarse: bool = False) -> list[Point]:
    """The points in order: a coarse pass over every operator, then, unless `coarse`, all the others."""
    sequences = (Point("lm_head", sequences=count) for count in SEQUENCES if count <= limits.max_tokens)
    attention = (*prefill_points(kernel), *decode_points(kernel), *hybrid_points())
    points = [
        *token_points(limits.max_tokens),
        *sequences,
        *(point for point in attention if _within(point, limits)),
        *(Point("whole_layer", tokens=tokens) for tokens in LAYER_TOKENS if tokens <= limits.max_tokens),
    ]
    first = [point for point in points if _is_coarse(point, limits)]
    return first if coarse else first + _without(points, first)


def _without(points: Iterable[Point], left_out: Iterable[Point]) -> list[Point]:
    left_out = set(left_out)
    return [point for point in points if point not in left_out]


def kv_tokens(point: Point, page_size: int) -> int:
    """KV entries that an attention point occupies, each sequence rounded up to whole pages."""
    prefill = -(-(point.prefill_context + point.prefill_tokens) // page_size) * page_size
    return point.prefills * prefill + point.decodes * (
        -(-point.decode_context // page_size) * page_size + (page_size if point.decode_longest else 0)
    )


def _within(point: Point, limits: Limits) -> bool:
    tokens = point.decodes + point.prefills * point.prefill_tokens
    area = point.prefill_tokens * (point.prefill_context + point.prefill_tokens // 2)
    return (
        tokens <= limits.max_tokens
        and kv_tokens(point, limits.page_size) <= limits.max_kv_tokens
        and area <= limits.most_attention_area
    )


def _is_coarse(point: Point, limits: Limits) -> bool:
    """Whether the point is in the first pass."""
    if point.operator != "attention":
        return (point.tokens or point.sequences) in _COARSE_TOKENS | {limits.max_tokens}
    if point.prefills > 1 or point.decode_longest or (point.decodes and point.prefills and point.prefill_context):
        return False
    chunk_fits = not point.prefills or point.prefill_tokens in _COARSE_CHUNKS
    context_fits = not point.prefills or point.prefill_context in _COARSE_CONTEXTS
    decodes_fit = not point.decodes or (point.decodes in _COARSE_DECODES and point.decode_context in _COARSE_CONTEXTS)
    return chunk_fits and context_fits and decodes_fit


def control_points(points: Iterable[Point]) -> list[Point]:
    """A few of `points`, measured at the beginning and again at the end to learn the noise."""
    wanted = (
        Point("qkv_proj", tokens=256),
        Point("mlp", tokens=257),
        Point("mlp", tokens=2048),
        Point("elementwise", tokens=1024),
        Point("lm_head", sequences=64),
        Point("attention", prefills=1, prefill_tokens=512, prefill_context=1024),
        Point("attention", decodes=64, decode_context=1024),
        Point("attention", decodes=64, decode_context=512, prefills=1, prefill_tokens=512),
    )
    planned = list(points)
    found = [point for point in wanted if point in planned]
    return found or planned[:: max(1, len(planned) // 4)][:4]
