"""Causal attention of a variable-length batch over a paged KV cache: one interface, three kernels.

| `--attention` | backend | kernel | pages |
| --- | --- | --- | --- |
| `fa2` | `flash-attn` | `flash_attn.flash_attn_varlen_func` (FlashAttention-2) | 256 |
| `fa3` | `vllm-flash-attn` | vLLM's `vllm_flash_attn`, `fa_version=3` (Hopper), as in its V1 engine | 16 |
| `torch` | `torch` | PyTorch's own attention, keys gathered from the pages: the reference, not fast | 16 |

The mask is causal and aligned to the right: the last new token of a request attends to all its KV entries.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Protocol

from profiler.batch import VarlenBatch
from simulator.errors import InputError
from simulator.models import ModelShape

if TYPE_CHECKING:
    import torch

Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""(q, key_cache, value_cache, block_table) -> output. q and output: (tokens, query heads, head_dim); caches:
(pages, page_size, KV heads, head_dim); block_table: int32 (sequences, pages). It only launches, so a
CUDA graph can capture it."""


class AttentionBackend(Protocol):
    """A paged varlen attention kernel."""

    name: str
    version: str
    page_size: int

    def prepare(self, batch: VarlenBatch, shape: ModelShape, device: str) -> Attend:
        """Upload what the batch's lengths decide; the result serves every layer, each with its own caches."""
        ...


class FlashAttention2:
    """The published flash-attn package. Its paged form takes pages of a multiple of 256 tokens."""

    name = "flash-attn"
    page_size = 256

    def __init__(self) -> None:
        import flash_attn

        self.version = str(flash_attn.__version__)
        self._kernel = flash_attn.flash_attn_varlen_func

    def prepare(self, batch: VarlenBatch, shape: ModelShape, device: str) -> Attend:  # noqa: ARG002 - the interface
        import torch

        cu_seqlens_q = torch.from_numpy(batch.cu_seqlens_q).to(device)
        cu_seqlens_k = torch.from_numpy(batch.cu_seqlens_k).to(device)
        max_seqlen_q, max_seqlen_k = batch.max_seqlen_q, batch.max_seqlen_k

        def attend(
            q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor
        ) -> torch.Tensor:
            return self._kernel(  # type: ignore[no-any-return]
                q,
                key_cache,
                value_cache,
                cu_seqlens_q,
                cu_seqlens_k,
                max_seqlen_q,
                max_seqlen_k,
                causal=True,
                block_table=block_table,
            )

        return attend


class VllmFlashAttention3:
    """FlashAttention-3 in the form that vLLM ships.

    As in vLLM's V1 engine (`v1/attention/backends/flash_attn.py`) the tile schedule of a batch is computed
    once a step, before the layers, and the kernel chooses the number of KV splits (`num_splits=0`).
    `dtype` is that of queries and cache, bfloat16 unless given.
    """

    name = "vllm-flash-attn"
    page_size = 16

    def __init__(self, dtype: "torch.dtype | None" = None) -> None:
        import torch
        from vllm import vllm_flash_attn

        if not vllm_flash_attn.is_fa_version_supported(3):
            raise ImportError(str(vllm_flash_attn.fa_version_unsupported_reason(3)))
        self.version = _version_of("vllm")
        self._kernel = vllm_flash_attn.flash_attn_varlen_func
        self._schedule = vllm_flash_attn.get_scheduler_metadata
        self._dtype = torch.bfloat16 if dtype is None else dtype

    def prepare(self, batch: VarlenBatch, shape: ModelShape, device: str) -> Attend:
        import torch

        cu_seqlens_q = torch.from_numpy(batch.cu_seqlens_q).to(device)
        lengths = torch.from_numpy(batch.lengths).to(device)
        max_seqlen_q, max_seqlen_k = batch.max_seqlen_q, batch.max_seqlen_k
        schedule = self._schedule(
            batch_size=len(batch.scheduled),
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            num_heads_q=shape.num_attention_heads,
            num_heads_kv=shape.num_key_value_heads,
            headdim=shape.head_dim,
            cache_seqlens=lengths,
            qkv_dtype=self._dtype,
            cu_seqlens_q=cu_seqlens_q,
            page_size=batch.page_size,
            causal=True,
        )

        def attend(
            q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor
        ) -> torch.Tensor:
            return self._kernel(  # type: ignore[no-any-return]
                q=q,
                k=key_cache,
                v=value_cache,
                max_seqlen_q=max_seqlen_q,
                cu_seqlens_q=cu_seqlens_q,
                max_seqlen_k=max_seqlen_k,
                seqused_k=lengths,
                causal=True,
                block_table=block_table,
                scheduler_metadata=schedule,
                fa_version=3,
            )

        return attend


class TorchAttention:
    """The reference. Decodes go through one padded call; chunks through one call each."""

    name = "torch"

    def __init__(self, page_size: int = 16) -> None:
        import torch

        self.version = str(torch.__version__)
        self.page_size = page_size

    def prepare(self, batch: VarlenBatch, shape: ModelShape, device: str) -> Attend:
        import torch

        single = [place for place, one in enumerate(batch.scheduled) if one.new == 1]
        chunks = [_Chunk(batch, place, device) for place, one in enumerate(batch.scheduled) if one.new > 1]
        decodes = _Decodes(batch, single, shape, device) if single else None

        def attend(
            q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor
        ) -> torch.Tensor:
            out = torch.empty_like(q)
            if decodes is not None:
                out.index_copy_(0, decodes.rows, decodes.attend(q, key_cache, value_cache, block_table))
            for chunk in chunks:
                out[chunk.rows] = chunk.attend(q, key_cache, value_cache, block_table)
            return out

        return attend


class _Decodes:
    """All requests with one new token, padded to the longest; query heads of a group share their keys."""

    def __init__(self, batch: VarlenBatch, places: list[int], shape: ModelShape, device: str):
        import torch

        lengths = torch.from_numpy(batch.lengths[places]).to(device)
        self.places = torch.tensor(places, device=device)
        self.rows = torch.from_numpy(batch.cu_seqlens_q[places]).long().to(device)
        self.pages = -(-int(batch.lengths[places].max()) // batch.page_size)
        entries = torch.arange(self.pages * batch.page_size, device=device)
        self.mask = (entries < lengths[:, None])[:, None, None]
        self.kv_heads = shape.num_key_value_heads

    def attend(
        self,
        q: "torch.Tensor",
        key_cache: "torch.Tensor",
        value_cache: "torch.Tensor",
        block_table: "torch.Tensor",
    ) -> "torch.Tensor":
        from torch.nn.functional import scaled_dot_product_attention

        pages = block_table[self.places, : self.pages].long()
        keys, values = (cache[pages].flatten(1, 2).transpose(1, 2) for cache in (key_cache, value_cache))
        queries = q[self.rows].view(len(self.rows), self.kv_heads, -1, q.shape[-1])
        return scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask).flatten(1, 2)


class _Chunk:
    """One request with several new tokens, each attending to all entries up to its own."""

    def __init__(self, batch: VarlenBatch, place: int, device: str):
        import torch

        one = batch.scheduled[place]
        self.place, self.length = place, one.length
        self.rows = slice(int(batch.cu_seqlens_q[place]), int(batch.cu_seqlens_q[place + 1]))
        self.pages = -(-one.length // batch.page_size)
        self.mask = torch.ones(one.new, one.length, dtype=torch.bool, device=device).tril(one.context)

    def attend(
        self,
        q: "torch.Tensor",
        key_cache: "torch.Tensor",
        value_cache: "torch.Tensor",
        block_table: "torch.Tensor",
    ) -> "torch.Tensor":
        from torch.nn.functional import scaled_dot_product_attention

        pages = block_table[self.place, : self.pages].long()
        queries = q[self.rows].transpose(0, 1)
        group = queries.shape[0] // key_cache.shape[2]
        keys, values = (
            cache[pages].flatten(0, 1)[: self.length].transpose(0, 1).repeat_interleave(group, 0)
            for cache in (key_cache, value_cache)
        )
        return scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=self.mask[None, None])[
            0
        ].transpose(0, 1)


def _version_of(package: str) -> str:
    try:
        return package_version(package)
    except PackageNotFoundError:
        return "unknown"


def choose_attention(wanted: str, device: str, dtype: "torch.dtype | None" = None) -> AttentionBackend:
    """The backend of `--attention`; `auto` is fa3 where it runs, else fa2, and on a CPU torch.

    `dtype` of queries and KV cache: bfloat16 unless given.

    Raises InputError where the kernel asked for cannot run here, and says what would.
    """
    if wanted == "torch" or (wanted == "auto" and device == "cpu"):
        return TorchAttention()
    if device == "cpu":
        raise InputError(f'"{wanted}" is a GPU kernel; with --device cpu use "torch"', key="--attention")
    problems = []
    for name, backend in (("fa3", partial(VllmFlashAttention3, dtype)), ("fa2", FlashAttention2)):
        if wanted not in ("auto", name):
            continue
        try:
            return backend()
        except (ImportError, OSError) as error:  # OSError: a shared library built for another torch or CUDA
            problems.append(f"{name}: {' '.join(str(error).split())}")
    raise InputError(
        f"no flash-attn kernel could be loaded ({'; '.join(problems)}). `pip install flash-attn"
        " --no-build-isolation` gives fa2, and vLLM brings fa3; `--attention torch` times PyTorch's own",
        key="--attention",
    )
