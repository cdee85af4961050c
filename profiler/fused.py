"""The elementwise work between a layer's matrix products, in plain torch, and the choice of Triton on a GPU.

`TorchFused` defines what is right. On a GPU the Triton kernels of `profiler.kernels` are used, after
`check_fused` has compared the two on random inputs.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Fused(Protocol):
    """Elementwise functions of one layer. Tensors are contiguous; `tokens` rows each."""

    name: str

    def add_rms_norm(
        self, x: "torch.Tensor", residual: "torch.Tensor", weight: "torch.Tensor", eps: float = 1e-5
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """(RMS norm of x + residual times `weight`, x + residual); x and residual (tokens, hidden)."""
        ...

    def rotary_(self, qkv: "torch.Tensor", heads: int, cos_sin: "torch.Tensor", positions: "torch.Tensor") -> None:
        """Rotate in place the first `heads` heads of each row of `qkv`: queries and keys, not values.

        `cos_sin`, float32 (positions, head_dim), is a row of `rotary_table`. The halves of a head form the
        pairs (the NeoX form that Llama uses).
        """
        ...

    def write_kv_(
        self,
        qkv: "torch.Tensor",
        key_cache: "torch.Tensor",
        value_cache: "torch.Tensor",
        slots: "torch.Tensor",
    ) -> None:
        """Write each token's key and value, the end of its row of `qkv`, to its slot of the caches.

        Caches are (pages, page_size, KV heads, head_dim); `slots` int64 (tokens).
        """
        ...

    def silu_mul(self, gate_up: "torch.Tensor") -> "torch.Tensor":
        """silu(gate) * up of a (tokens, 2 * width) product, gate in the first half; (tokens, width)."""
        ...

    def gelu(self, up: "torch.Tensor") -> "torch.Tensor":
        """GELU in its tanh form, of the MLP without a gate; (tokens, width)."""
        ...

    def head_norm_(
        self, qkv: "torch.Tensor", first: int, heads: int, weight: "torch.Tensor", eps: float = 1e-5
    ) -> None:
        """RMS norm in place, each by itself, of `heads` heads of each row of `qkv` from head `first` on.

        `weight`: (head_dim).
        """
        ...


class TorchFused:
    """The reference: float32 inside, rounded once at the end."""

    name = "torch"

    def add_rms_norm(
        self, x: "torch.Tensor", residual: "torch.Tensor", weight: "torch.Tensor", eps: float = 1e-5
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        summed = x.float() + residual.float()
        normed = summed * (summed.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.float()
        return normed.to(x.dtype), summed.to(x.dtype)

    def rotary_(self, qkv: "torch.Tensor", heads: int, cos_sin: "torch.Tensor", positions: "torch.Tensor") -> None:
        half = cos_sin.shape[1] // 2
        cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
        halves = qkv[:, : heads * 2 * half].view(-1, heads, 2, half)
        left, right = halves.float().unbind(2)
        rotated = left * cos - right * sin, right * cos + left * sin
        for place, values in enumerate(rotated):  # only now: in float32, left and right are `qkv` itself
            halves[:, :, place] = values.to(qkv.dtype)

    def write_kv_(
        self,
        qkv: "torch.Tensor",
        key_cache: "torch.Tensor",
        value_cache: "torch.Tensor",
        slots: "torch.Tensor",
    ) -> None:
        heads, head_dim = key_cache.shape[-2:]
        new = qkv[:, -2 * heads * head_dim :].view(-1, 2, heads, head_dim)
        key_cache.view(-1, heads, head_dim).index_copy_(0, slots, new[:, 0])
        value_cache.view(-1, heads, head_dim).index_copy_(0, slots, new[:, 1])

    def silu_mul(self, gate_up: "torch.Tensor") -> "torch.Tensor":
        import torch

        gate, up = gate_up.float().chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)

    def gelu(self, up: "torch.Tensor") -> "torch.Tensor":
        import torch

        return torch.nn.functional.gelu(up.float(), approximate="tanh").to(up.dtype)

    def head_norm_(
        self, qkv: "torch.Tensor", first: int, heads: int, weight: "torch.Tensor", eps: float = 1e-5
    ) -> None:
        size = len(weight)
        own = qkv[:, first * size : (first + heads) * size].view(-1, heads, size)
        values = own.float()
        own.copy_(values * (values.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.float())


def rotary_table(positions: int, head_dim: int, device: str, base: float = 500_000.0) -> "torch.Tensor":
    """Cosines, then sines, of positions 0 to `positions` - 1: float32 (positions, head_dim)."""
    import torch

    rates = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), rates)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).float().to(device)


def choose_fused(device: str) -> tuple[Fused, str]:
    """The functions to time on `device`, and a note for the table's metadata."""
    if device == "cpu" or find_spec("triton") is None:
        return TorchFused(), "elementwise work in plain torch, not fused"
    from profiler.kernels import TritonFused

    return TritonFused(), "elementwise work fused in Triton kernels, one launch each"


def relative_error(actual: "torch.Tensor", expected: "torch.Tensor") -> float:
    """|actual - expected| / |expected| in the 2-norm; infinite where `actual` holds a NaN."""
    actual, expected = actual.double(), expected.double()
    error = float((actual - expected).norm() / expected.norm().clamp_min(1e-30))
    return error if error == error else float("inf")


def check_fused(fused: Fused, device: str, dtype: "torch.dtype") -> float:
    """Largest relative error of `fused` against the reference, over all its functions, on random inputs."""
    import torch

    random = torch.Generator(device).manual_seed(1)

    def normal(*shape: int) -> "torch.Tensor":
        return torch.randn(shape, device=device, dtype=dtype, generator=random)

    plain = TorchFused()
    tokens, query_heads, kv_heads, head_dim = 37, 12, 4, 64
    x, residual, weight = normal(tokens, 640), normal(tokens, 640), normal(640)
    head_weight = normal(head_dim)
    qkv = normal(tokens, (query_heads + 2 * kv_heads) * head_dim)
    positions = torch.randperm(512, device=device, generator=random)[:tokens]
    slots = torch.randperm(6 * 16, device=device, generator=random)[:tokens]
    table = rotary_table(512, head_dim, device)
    results = []
    for functions in (fused, plain):
        rows, caches = (
            qkv.clone(),
            [torch.zeros(6, 16, kv_heads, head_dim, device=device, dtype=dtype) for _ in "kv"],
        )
        functions.head_norm_(rows, query_heads, kv_heads, head_weight)
        functions.rotary_(rows, query_heads + kv_heads, table, positions)
        functions.write_kv_(rows, caches[0], caches[1], slots)
        normed = functions.add_rms_norm(x, residual, weight)
        results.append([rows, *caches, *normed, functions.silu_mul(x), functions.gelu(x)])
    return max(relative_error(ours, right) for ours, right in zip(*results, strict=True))
