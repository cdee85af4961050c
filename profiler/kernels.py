"""The fused elementwise work of a layer as small Triton kernels, one launch each, as engines launch it.

Each reads its inputs once and writes its outputs once; sums and rotations are done in float32.
`profiler.fused` has the same functions in plain torch, against which these are checked before anything is
timed. Importing this module needs Triton and is left to `profiler.fused`.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_COLUMNS = 1024

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (a Triton kernel's parameters are pointers, which Python's types cannot tell)


@triton.jit
def _add_rms_norm(x, residual, weight, normed, summed, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    total = tl.load(x + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / WIDTH + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(summed + row * WIDTH + columns, total.to(summed.dtype.element_ty), mask=inside)
    tl.store(normed + row * WIDTH + columns, (total * scale * gain).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _rotary(
    qkv, cos_sin, positions, ROW: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    heads = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    places = tl.arange(0, HALF_BLOCK)
    table = cos_sin + position * (2 * HALF) + places
    cos = tl.load(table, mask=places < HALF, other=0.0)[None, :]
    sin = tl.load(table + HALF, mask=places < HALF, other=0.0)[None, :]
    first = qkv + token * ROW + heads[:, None] * (2 * HALF) + places[None, :]
    inside = (heads[:, None] < HEADS) & (places[None, :] < HALF)
    left = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(first + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (left * cos - right * sin).to(qkv.dtype.element_ty), mask=inside)
    tl.store(first + HALF, (right * cos + left * sin).to(qkv.dtype.element_ty), mask=inside)


@triton.jit
def _write_kv(
    qkv, key_cache, value_cache, slots, ROW: tl.constexpr, KEY: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    source = qkv + token * ROW + KEY + columns
    tl.store(key_cache + slot * WIDTH + columns, tl.load(source, mask=inside), mask=inside)
    tl.store(value_cache + slot * WIDTH + columns, tl.load(source + WIDTH, mask=inside), mask=inside)


@triton.jit
def _silu_mul(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate = tl.load(gate_up + row * (2 * WIDTH) + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gelu(up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(up + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)  # sqrt(2 / pi)
    result = x * tl.sigmoid(2.0 * inner)  # (1 + tanh(z)) / 2 is the sigmoid of 2 z
    tl.store(out + row * WIDTH + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _head_norm(
    qkv, weight, eps, ROW: tl.constexpr, FIRST: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, SIZE_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    places = tl.arange(0, SIZE_BLOCK)
    own = qkv + token * ROW + (FIRST + heads[:, None]) * SIZE + places[None, :]
    inside = (heads[:, None] < HEADS) & (places[None, :] < SIZE)
    values = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / SIZE + eps)
    gain = tl.load(weight + places, mask=places < SIZE, other=0.0).to(tl.float32)
    tl.store(own, (values * scale[:, None] * gain[None, :]).to(qkv.dtype.element_ty), mask=inside)


class TritonFused:
    """The functions of `profiler.fused.TorchFused`, one kernel each, on contiguous CUDA tensors."""

    name = "triton"

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = x.shape
        normed, summed = torch.empty_like(x), torch.empty_like(x)
        block = triton.next_power_of_2(width)
        _add_rms_norm[(rows,)](
            x, residual, weight, normed, summed, eps, WIDTH=width, BLOCK=block, num_warps=_warps(block)
        )
        return normed, summed

    def rotary_(self, qkv: torch.Tensor, heads: int, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        tokens, row = qkv.shape
        half = cos_sin.shape[1] // 2
        head_block = 8
        _rotary[(tokens, triton.cdiv(heads, head_block))](
            qkv,
            cos_sin,
            positions,
            ROW=row,
            HEADS=heads,
            HALF=half,
            HEAD_BLOCK=head_block,
            HALF_BLOCK=triton.next_power_of_2(half),
        )

    def write_kv_(
        self, qkv: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        tokens, row = qkv.shape
        width = key_cache.shape[-2] * key_cache.shape[-1]
        block = triton.next_power_of_2(width)
        _write_kv[(tokens,)](
            qkv,
            key_cache,
            value_cache,
            slots,
            ROW=row,
            KEY=row - 2 * width,
            WIDTH=width,
            BLOCK=block,
            num_warps=_warps(block),
        )

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, both = gate_up.shape
        out = torch.empty((rows, both // 2), dtype=gate_up.dtype, device=gate_up.device)
        _silu_mul[(rows, triton.cdiv(both // 2, _COLUMNS))](gate_up, out, WIDTH=both // 2, BLOCK=_COLUMNS)
        return out

    def gelu(self, up: torch.Tensor) -> torch.Tensor:
        rows, width = up.shape
        out = torch.empty_like(up)
        _gelu[(rows, triton.cdiv(width, _COLUMNS))](up, out, WIDTH=width, BLOCK=_COLUMNS)
        return out

    def head_norm_(self, qkv: torch.Tensor, first: int, heads: int, weight: torch.Tensor, eps: float = 1e-5) -> None:
        tokens, row = qkv.shape
        head_block = min(8, triton.next_power_of_2(heads))
        _head_norm[(tokens, triton.cdiv(heads, head_block))](
            qkv,
            weight,
            eps,
            ROW=row,
            FIRST=first,
            HEADS=heads,
            SIZE=len(weight),
            HEAD_BLOCK=head_block,
            SIZE_BLOCK=triton.next_power_of_2(len(weight)),
        )


def _warps(block: int) -> Any:
    return min(max(block // 512, 1), 16)
