"""A model of one attention call: tiles of query rows in waves, and the KV cache read once.

A prefill chunk is cut into tiles of query rows, each of which meets all keys before it; the tiles of all heads are
dealt to the multiprocessors in waves, so a chunk of one row more can cost another wave. A decode is one tile a KV head,
split over idle multiprocessors. In a call with both, FlashAttention-3 runs the tiles of either kind side by side;
FlashAttention-2 gives each query head of a decode a whole tile of rows, so its decodes are dear beside a chunk.
"""

from math import ceil

from profiler.grid import Point
from profiler.imports.datasheet import Hardware
from simulator.models import ModelShape

MOST_SPLITS = 32
LEAST_SPLIT = 256  # keys
DECODE_ROWS = 64  # the smallest tile of tensor-core instructions that the kernels use


def attention_us(point: Point, shape: ModelShape, hardware: Hardware) -> float:
    """Microseconds of one call in one layer: `point.prefills` chunks and `point.decodes` decodes."""
    constants, sheet = hardware.constants.attention, hardware.sheet
    computing = _prefill_s(point, shape, hardware) + _decode_s(point, shape, hardware)
    keys = point.prefills * (point.prefill_context + point.prefill_tokens) + point.decodes * point.decode_context
    new = point.prefills * point.prefill_tokens + point.decodes
    entry = shape.num_key_value_heads * shape.head_dim
    traffic = shape.dtype_bytes * 2 * (keys * entry + new * shape.num_attention_heads * shape.head_dim)
    memory = traffic / (sheet.memory_bandwidth * constants.memory_share)
    return float((computing**2 + memory**2) ** 0.5) * 1e6 + constants.launch_us


def _prefill_s(point: Point, shape: ModelShape, hardware: Hardware) -> float:
    if not point.prefills or not point.prefill_tokens:
        return 0.0
    constants, tokens = hardware.constants.attention, point.prefill_tokens
    sharing = shape.num_attention_heads // shape.num_key_value_heads if constants.packs_heads else 1
    row_tiles = ceil(tokens * sharing / constants.query_rows)
    tiles = point.prefills * row_tiles * shape.num_attention_heads // sharing
    tile_tokens = min(tokens, constants.query_rows / sharing)
    seen = point.prefill_context + (tokens + tile_tokens) / 2
    splits = _splits(tiles, seen, hardware) if constants.splits_prefill else 1
    waves = ceil(tiles * splits / hardware.gpu.sm_count)
    return waves * _tile_s(constants.query_rows, seen / splits, shape, hardware)


def _decode_s(point: Point, shape: ModelShape, hardware: Hardware) -> float:
    if not point.decodes:
        return 0.0
    constants = hardware.constants.attention
    alone = not point.prefills or constants.packs_heads
    heads = shape.num_key_value_heads if alone else shape.num_attention_heads
    tiles = point.decodes * heads
    splits = _splits(tiles, point.decode_context, hardware) if alone else 1
    waves = max(1.0, tiles * splits / hardware.gpu.sm_count)
    return waves * _tile_s(DECODE_ROWS, point.decode_context / splits, shape, hardware)


def _tile_s(rows: int, keys: float, shape: ModelShape, hardware: Hardware) -> float:
    """One tile of `rows` query rows against `keys` keys on one multiprocessor."""
    constants = hardware.constants.attention
    rate = hardware.sheet.peak_flops / hardware.gpu.sm_count * constants.flops_share
    return 4 * rows * shape.head_dim * keys / rate + constants.tile_us * 1e-6


def _splits(tiles: int, keys: float, hardware: Hardware) -> int:
    """Into how many parts the keys are cut so that the tiles fill the multiprocessors without a further wave."""
    return max(1, min(hardware.gpu.sm_count // tiles, int(keys) // LEAST_SPLIT, MOST_SPLITS))
