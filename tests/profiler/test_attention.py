"""Attention over shuffled pages against plain attention over one sequence, and how kernels are called."""

import sys
from types import ModuleType

import numpy as np
import pytest

from profiler.attention import FlashAttention2, TorchAttention, VllmFlashAttention3, choose_attention
from profiler.batch import VarlenBatch, chunk, decode, pages_of, share_pages
from profiler.fused import TorchFused, relative_error
from profiler.grid import Point
from profiler.paged import PagedAttention, check_attention, require_correct, scheduled_of
from simulator.errors import InputError
from tests.profiler.machines import TINY, needs_gpu, needs_torch

pytestmark = needs_torch

HYBRID = [decode(121), decode(46), decode(1), chunk(77, 50, 200), chunk(0, 33, 33)]


def _naive(q, keys, values):
    """Right-aligned causal attention of one request: (new, heads, d) over (length, kv heads, d)."""
    import torch

    new, heads, head_dim = q.shape
    group = heads // keys.shape[1]
    out = torch.empty_like(q)
    for place in range(new):
        seen = keys.shape[0] - new + place + 1
        for head in range(heads):
            scores = keys[:seen, head // group] @ q[place, head] / head_dim**0.5
            out[place, head] = scores.softmax(0) @ values[:seen, head // group]
    return out


def _batch(scheduled, page_size, seed=0):
    count = sum(pages_of(scheduled, page_size)) + 4
    free = np.random.default_rng(seed).permutation(count).tolist()
    return VarlenBatch.build(scheduled, page_size, share_pages(scheduled, page_size, free)), count


def _random_step(scheduled, page_size):
    """A batch on shuffled pages, its queries and caches, and what plain attention makes of them."""
    import torch

    torch.manual_seed(1)
    batch, pages = _batch(scheduled, page_size)
    cache = torch.randn(2, pages, page_size, TINY.num_key_value_heads, TINY.head_dim)
    q = torch.randn(batch.tokens, TINY.num_attention_heads, TINY.head_dim)
    expected = []
    for place, one in enumerate(batch.scheduled):
        keys, values = (
            part[torch.from_numpy(batch.block_table[place]).long()].flatten(0, 1)[: one.length] for part in cache
        )
        start, end = batch.cu_seqlens_q[place : place + 2]
        expected.append(_naive(q[start:end], keys, values))
    return batch, q, cache[0], cache[1], torch.cat(expected)


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_torch_backend_equals_plain_attention(page_size):
    """Decodes and chunks in one call, the mask aligned to the right, grouped heads, any page size."""
    import torch

    batch, q, key_cache, value_cache, expected = _random_step(HYBRID, page_size)
    attend = TorchAttention(page_size).prepare(batch, TINY, "cpu")
    actual = attend(q, key_cache, value_cache, torch.from_numpy(batch.block_table))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_prompt_in_chunks_equals_the_prompt_at_once():
    """Chunked prefill through the paged cache changes nothing: 70 tokens at once, and as 30 + 1 + 39."""
    import torch

    torch.manual_seed(2)
    qkv = torch.randn(70, TINY.qkv_features)
    q = qkv[:, : TINY.num_attention_heads * TINY.head_dim].reshape(70, TINY.num_attention_heads, TINY.head_dim)
    pages = [9, 3, 7, 0, 5]

    def run(*chunks):
        cache = torch.zeros(2, 10, 16, TINY.num_key_value_heads, TINY.head_dim)
        out, context = [], 0
        for new in chunks:
            batch = VarlenBatch.build([chunk(context, new, 70)], 16, [pages])
            rows = slice(context, context + new)
            TorchFused().write_kv_(qkv[rows], cache[0], cache[1], torch.from_numpy(batch.slot_mapping))
            attend = TorchAttention().prepare(batch, TINY, "cpu")
            out.append(attend(q[rows], cache[0], cache[1], torch.from_numpy(batch.block_table)))
            context += new
        return torch.cat(out)

    torch.testing.assert_close(run(30, 1, 39), run(70), rtol=1e-5, atol=1e-5)


def _stub(monkeypatch, name, **members):
    module = ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def _plain_varlen(q, keys, values, cu_seqlens_q, lengths, block_table):
    """What a paged varlen kernel computes, from its own arguments alone."""
    import torch

    out = []
    for place, length in enumerate(lengths.tolist()):
        own = [part[block_table[place].long()].flatten(0, 1)[:length] for part in (keys, values)]
        out.append(_naive(q[cu_seqlens_q[place] : cu_seqlens_q[place + 1]], *own))
    return torch.cat(out)


def test_flash_attention_2_gets_lengths_as_sums(monkeypatch):
    """The published signature: cumulative key lengths, maxima, causal, block table; pages of 256."""
    import torch

    def kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, causal=False, block_table=None):
        assert causal
        assert k.shape[1] % 256 == 0
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
        assert (max_seqlen_q, max_seqlen_k) == (50, 127)
        return _plain_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), block_table)

    _stub(monkeypatch, "flash_attn", __version__="2.8.3", flash_attn_varlen_func=kernel)
    backend = FlashAttention2()
    assert (backend.name, backend.version) == ("flash-attn", "2.8.3")
    batch, q, key_cache, value_cache, expected = _random_step(HYBRID, backend.page_size)
    actual = backend.prepare(batch, TINY, "cpu")(q, key_cache, value_cache, torch.from_numpy(batch.block_table))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_flash_attention_3_gets_used_lengths_and_one_schedule_a_step(monkeypatch):
    """vLLM's form: `seqused_k`, no cumulative key lengths, and one tile schedule for all layers."""
    import torch

    schedules = []

    def schedule(**given):
        assert given["cache_seqlens"].dtype == torch.int32
        assert (given["batch_size"], given["page_size"], given["causal"]) == (5, 16, True)
        schedules.append(given)
        return "the schedule"

    def kernel(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, causal=False,
        block_table=None, scheduler_metadata=None, fa_version=2,
    ):  # fmt: skip
        assert (causal, fa_version, scheduler_metadata, cu_seqlens_k) == (True, 3, "the schedule", None)
        assert (max_seqlen_q, max_seqlen_k) == (50, 127)
        return _plain_varlen(q, k, v, cu_seqlens_q, seqused_k, block_table)

    flash = _stub(
        monkeypatch,
        "vllm.vllm_flash_attn",
        flash_attn_varlen_func=kernel,
        get_scheduler_metadata=schedule,
        is_fa_version_supported=lambda version: version == 3,
    )
    _stub(monkeypatch, "vllm", vllm_flash_attn=flash)
    backend = VllmFlashAttention3()
    batch, q, key_cache, value_cache, expected = _random_step(HYBRID, backend.page_size)
    attend = backend.prepare(batch, TINY, "cpu")
    for _layer in range(2):
        actual = attend(q, key_cache, value_cache, torch.from_numpy(batch.block_table))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert len(schedules) == 1


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_flash_attention_3_schedules_for_the_type_it_runs_in(monkeypatch, dtype):
    """bfloat16 unless told; and for the heads of the shape given, those of a shard."""
    import torch

    given = {}
    flash = _stub(
        monkeypatch,
        "vllm.vllm_flash_attn",
        flash_attn_varlen_func=None,
        get_scheduler_metadata=lambda **keys: given.update(keys),
        is_fa_version_supported=lambda version: version == 3,
    )
    _stub(monkeypatch, "vllm", vllm_flash_attn=flash)
    backend = choose_attention("fa3", "cuda", None if dtype is None else getattr(torch, dtype))
    backend.prepare(_random_step(HYBRID, backend.page_size)[0], TINY.shard(2), "cpu")
    assert given["qkv_dtype"] == getattr(torch, dtype or "bfloat16")
    assert (given["num_heads_q"], given["num_heads_kv"]) == (3, 1)


def test_fa3_on_a_gpu_that_cannot_run_it_says_why(monkeypatch):
    """vLLM's own reason is passed on."""
    flash = _stub(
        monkeypatch,
        "vllm.vllm_flash_attn",
        is_fa_version_supported=lambda _version: False,
        fa_version_unsupported_reason=lambda _version: "FA3 is only supported on capability 9.x",
    )
    _stub(monkeypatch, "vllm", vllm_flash_attn=flash)
    with pytest.raises(InputError, match=r"fa3: FA3 is only supported on capability 9\.x"):
        choose_attention("fa3", "cuda")


def test_without_flash_attn_the_message_says_what_to_install(monkeypatch):
    """Both kernels are missing; torch's own is offered."""
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InputError, match=r"no flash-attn kernel.*pip install flash-attn.*--attention torch"):
        choose_attention("auto", "cuda")


def test_gpu_kernels_are_refused_on_a_cpu():
    """And auto is torch there."""
    assert choose_attention("auto", "cpu").name == "torch"
    with pytest.raises(InputError, match="GPU kernel"):
        choose_attention("fa2", "cpu")


class _ReadsPagesInOrder(TorchAttention):
    """Ignores the block table, as a kernel with broken paging would."""

    def prepare(self, batch, shape, device):
        import torch

        attend = super().prepare(batch, shape, device)

        def ignoring(q, key_cache, value_cache, block_table):
            in_order = torch.arange(block_table.numel(), device=block_table.device) % len(key_cache)
            return attend(q, key_cache, value_cache, in_order.view_as(block_table).int())

        return ignoring


def test_the_check_before_timing_finds_a_wrong_kernel():
    """The right kernel passes exactly; one that ignores the block table is refused."""
    import torch

    require_correct(check_attention(TorchAttention(), TINY, "cpu", torch.float32), "attention", limit=1e-6)
    error = check_attention(_ReadsPagesInOrder(), TINY, "cpu", torch.float32)
    with pytest.raises(InputError, match="no table is written"):
        require_correct(error, "attention")
    with pytest.raises(InputError):
        require_correct(float("nan"), "attention")


def test_calls_of_a_point_read_different_pages():
    """Copies fill three times the L2 or what the cache holds; no page is shared."""
    import torch

    paged = PagedAttention(TorchAttention(), TINY, "cpu", torch.float32, pages=40, l2_bytes=2**20)
    point = Point("attention", decodes=2, decode_context=33, prefills=1, prefill_tokens=5, prefill_context=30)
    lists = paged._page_lists(scheduled_of(point))
    used = [page for copy in lists for own in copy for page in own]
    assert len(lists) == 40 // (3 + 3 + 3)
    assert len(used) == len(set(used))
    outputs = [call() for call in paged.calls(point)]
    assert outputs[0].shape == (7, TINY.num_attention_heads, TINY.head_dim)
    assert relative_error(outputs[0], outputs[1]) > 0.1


def test_a_batch_larger_than_the_cache_is_refused():
    """Not silently measured on shared pages."""
    import torch

    paged = PagedAttention(TorchAttention(), TINY, "cpu", torch.float32, pages=3, l2_bytes=0)
    with pytest.raises(ValueError, match="needs 4 pages of KV cache; there are 3"):
        paged.calls(Point("attention", decodes=2, decode_context=17))


@needs_gpu
@pytest.mark.parametrize("kernel", ["fa2", "fa3", "torch"])
def test_gpu_kernels_equal_the_reference(kernel):
    """Each kernel that is installed, in bfloat16, at the head counts of Llama 3.1 8B."""
    import torch

    from simulator.models import load_model

    try:
        backend = choose_attention(kernel, "cuda")
    except InputError as error:
        pytest.skip(str(error))
    assert check_attention(backend, load_model("llama-3.1-8b"), "cuda", torch.bfloat16) < 1e-2
