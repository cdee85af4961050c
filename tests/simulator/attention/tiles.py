"""The obvious replay of an attention call: every tile of every request, each slot, one event after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

from simulator.attention.decodes import bandwidth_share
from simulator.attention.kernel_times import DecodeTimes, KernelTimes
from simulator.attention.kernels import TILE_KEYS, Form, Kernel, kernel_of
from simulator.attention.replay import Rate
from simulator.models import ModelShape

GROUPED = ModelShape(
    name="grouped",
    num_hidden_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    max_position_embeddings=131072,
)
FA3 = kernel_of("vllm-flash-attn", GROUPED, 132)
FA2 = kernel_of("flash-attn", GROUPED, 132)
FA3_TIMES = KernelTimes(
    fixed_us=6.5,
    alone=DecodeTimes(0.92, 0.0125, 0.7, 2.0),
    mixed=DecodeTimes(1.42, 0.0100, 1.9, 2.0),
    chunk_us=1.6,
    chunk_start=2.0,
    combine_us=1.2,
    combine_split_us=0.02,
    combine_part_us=0.004,
)
FA2_TIMES = KernelTimes(
    fixed_us=2.0,
    alone=DecodeTimes(2.4, 0.0055, 1.0, 2.0, 0.1),
    mixed=DecodeTimes(2.0, 0.0115, 2.0, 2.8, 0.15),
    chunk_us=3.4,
    chunk_start=1.5,
    chunk_shared=0.6,
    combine_us=1.4,
    combine_split_us=0.3,
    combine_part_us=0.003,
    empty_us=0.0011,
    cached_tokens=40_000,
    reorder_us=9.0,
)


@dataclass(frozen=True)
class Tile:
    """Work of one tile: blocks of keys, and whether it is a chunk's."""

    blocks: float
    of_chunk: bool


def call_us(kernel: Kernel, times: KernelTimes, contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> float:
    """Microseconds of a call with decodes of these contexts, in order, and then chunks `(context before, tokens)`."""
    most_tokens = max([1 if contexts else 0, *(tokens for _, tokens in chunks)])
    form = kernel.mixed if chunks else kernel.alone
    if kernel.alone.dynamic_splits and most_tokens <= kernel.alone.tokens:
        form = kernel.alone
    own = times.alone if not chunks or form is not kernel.mixed else times.mixed
    requests = [(context, 1) for context in contexts] + [(before + tokens, tokens) for before, tokens in chunks]
    columns = [ceil(tokens / form.tokens) for _, tokens in requests]
    longest = max(keys for keys, _ in requests)
    tiles_of = form.heads * (len(contexts) if form.uniform_splits else ceil(most_tokens / form.tokens))
    parts = kernel.splits(form, tiles_of, longest)
    total = sum(count * ceil(keys / TILE_KEYS) for count, (keys, _) in zip(columns, requests, strict=True))
    most = kernel.blocks_a_slot(form, total) if form.dynamic_splits and parts > 1 else float("inf")
    per_request, cut = [], 0
    for count, (keys, tokens) in zip(columns, requests, strict=True):
        whole = ceil(keys / TILE_KEYS)
        splits = parts if form.uniform_splits else max(min(ceil(whole / most), parts), 1)
        cut += tokens * splits
        tiles = []
        for column in reversed(range(count)):
            reach = keys - tokens + min(tokens, (column + 1) * form.tokens)
            length = ceil(ceil(reach / TILE_KEYS) / splits) * TILE_KEYS
            starts = range(0, reach, length)
            tiles += [Tile(min(length, reach - start) / TILE_KEYS, tokens > 1) for start in starts]
        per_request.append(tiles)
    if form.by_head and parts == 1:
        ordered = [tile for _ in range(form.heads) for tiles in per_request for tile in tiles]
    else:
        ordered = [tile for tiles in per_request for tile in tiles for _ in range(form.heads)]
    share = bandwidth_share(kernel, times, sum(contexts)) if chunks else 1.0
    sharing = form.slots > kernel.multiprocessors
    block_us = times.block_us(len(ordered), kernel.multiprocessors) if sharing else times.chunk_us
    end = _makespan(ordered, form, own.rate(share), block_us, times.chunk_start, kernel.multiprocessors)
    reorder = times.reorder_us if form.uniform_splits and len(contexts) > 1 else 0.0
    empty = sum(max(columns) - count for count in columns) * form.heads if form.by_head and chunks else 0
    return times.fixed_us + reorder + end + empty * times.empty_us + times.join_us(parts, cut)


def _makespan(
    tiles: Sequence[Tile], form: Form, rate: Rate, block_us: float, chunk_start: float, multiprocessors: int
) -> float:
    """When the last tile ends: decode tiles share the memory, chunk tiles run at their own pace."""
    now = decoded = 0.0
    decodes: list[float] = []
    chunks: list[float] = []
    waiting = list(reversed(tiles))
    while waiting or decodes or chunks:
        while waiting and len(decodes) + len(chunks) < form.slots:
            tile = waiting.pop()
            if tile.of_chunk:
                heappush(chunks, now + (tile.blocks + chunk_start) * block_us)
            else:
                heappush(decodes, decoded + tile.blocks + rate.start)
        pace = rate.block(len(decodes), multiprocessors) if decodes else 1.0
        steps = ([(decodes[0] - decoded) * pace] if decodes else []) + ([chunks[0] - now] if chunks else [])
        step = min(steps)
        now, decoded = now + step, decoded + step / pace
        while decodes and decodes[0] <= decoded + 1e-9:
            heappop(decodes)
        while chunks and chunks[0] <= now + 1e-9:
            heappop(chunks)
    return now
