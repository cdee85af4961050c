"""`--verify`: right kernels pass, and each mistake that a paged varlen kernel is known for makes it fail."""

from dataclasses import replace

import pytest

from profiler.attention import FlashAttention2, TorchAttention, VllmFlashAttention3
from profiler.forward import Model, Place
from profiler.fused import TorchFused, choose_fused
from profiler.verify import CHUNKS, PROMPT, Check, VerificationError, needed_pages, tolerance, verify
from tests.profiler.machines import TINY, needs_gpu, needs_torch

pytestmark = [*needs_torch, pytest.mark.usefixtures("one_thread")]


def build(backend=None, fused=None, shape=TINY, dtype=None, ranks=1, device="cpu") -> Model:
    """A model with just the pages that verification needs."""
    import torch

    torch.manual_seed(0)
    backend, dtype = backend or TorchAttention(), dtype or torch.float32
    pages = needed_pages(backend.page_size)
    return Model(Place(shape.shard(ranks), backend, fused or TorchFused(), device, dtype, pages, PROMPT, 4, ranks))


class Masked(TorchAttention):
    """Attention under the mask that `mask(context, new)` gives, bool (new, context + new)."""

    def __init__(self, mask, page_size=16):
        super().__init__(page_size)
        self.mask = mask

    def prepare(self, batch, shape, device):  # noqa: ARG002 - the interface
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        def attend(q, key_cache, value_cache, block_table):
            out = torch.empty_like(q)
            for place, one in enumerate(batch.scheduled):
                rows = slice(int(batch.cu_seqlens_q[place]), int(batch.cu_seqlens_q[place + 1]))
                pages = block_table[place].long()
                group = q.shape[1] // key_cache.shape[2]
                keys, values = (
                    cache[pages].flatten(0, 1)[: one.length].transpose(0, 1).repeat_interleave(group, 0)
                    for cache in (key_cache, value_cache)
                )
                mask = self.mask(one.context, one.new)
                out[rows] = scaled_dot_product_attention(
                    q[rows].transpose(0, 1)[None], keys[None], values[None], attn_mask=mask
                )[0].transpose(0, 1)
            return out

        return attend


def causal(shift):
    """Right-aligned, `shift` keys too many (or, negative, too few)."""

    def mask(context, new):
        import torch

        return torch.ones(new, context + new, dtype=torch.bool).tril(context + shift)

    return mask


def left_aligned(context, new):
    """As PyTorch's `is_causal` aligns it: wrong as soon as there is a context."""
    import torch

    return torch.ones(new, context + new, dtype=torch.bool).tril()


def without_last_cached(context, new):
    """The token before the chunk is missed."""
    mask = causal(0)(context, new)
    if context:
        mask[:, context - 1] = False
    return mask


def without_itself(context, new):
    """Each token but the first of a prompt misses its own key: consistent, so chunked equals unchunked."""
    import torch

    rows = torch.arange(new)
    mask = causal(0)(context, new)
    mask[rows, rows + context] = rows + context == 0
    return mask


def leaking_one(context, new):
    """Only the next token is seen, only by the one before the changed one's place: a single pair in a prompt."""
    mask = causal(0)(context, new)
    if context == 0 and new > 8:
        mask[7, 8] = True
    return mask


class OtherSlots(TorchFused):
    """Keys and values of a chunk go to each other's slots."""

    def write_kv_(self, qkv, key_cache, value_cache, slots):
        super().write_kv_(qkv, key_cache, value_cache, slots.roll(1))


class NextSlot(TorchFused):
    """All one slot too far."""

    def write_kv_(self, qkv, key_cache, value_cache, slots):
        super().write_kv_(qkv, key_cache, value_cache, (slots + 1) % (key_cache.shape[0] * key_cache.shape[1]))


class Restarting(TorchFused):
    """The rotary embedding counts positions from the start of a chunk."""

    def rotary_(self, qkv, heads, cos_sin, positions):
        super().rotary_(qkv, heads, cos_sin, positions - positions[-1] + (positions == positions[-1]).sum())


class FirstPages(TorchAttention):
    """Reads every request's keys from the pages of the first."""

    def prepare(self, batch, shape, device):
        attend = super().prepare(batch, shape, device)
        return lambda q, keys, values, table: attend(q, keys, values, table[:1].expand(len(table), -1))


@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_right_kernels_pass(name, page_size):
    """In each type, every error well within what rounding explains."""
    import torch

    checks = verify(build(TorchAttention(page_size), dtype=getattr(torch, name)))
    assert len(checks) == 9
    assert all(check.error <= 0.7 * check.limit for check in checks)


OTHERS = {
    "shard": ({}, 2),
    "one norm": ({"norms_per_layer": 1}, 1),
    "four norms, norms of heads": ({"qk_norm": True, "norms_per_layer": 4}, 1),
    "learned positions": ({"position_embedding": "learned"}, 1),
}


@pytest.mark.parametrize(("changes", "ranks"), OTHERS.values(), ids=OTHERS)
def test_other_models_pass(changes, ranks):
    """One rank's, and other kinds of layers."""
    assert verify(build(shape=replace(TINY, **changes), ranks=ranks))


def test_the_fake_passes_with_the_right_mask():
    """So what fails below fails for its mask."""
    assert verify(build(Masked(causal(0))))


HIDDEN, PAIRS = "in 10 chunks against at once", "wrong pairs of a token"


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (left_aligned, [HIDDEN, PAIRS]),
        (causal(-1), [PAIRS]),
        (causal(1), [HIDDEN, PAIRS, "change of earlier positions"]),
        (without_last_cached, [HIDDEN, PAIRS]),
        (without_itself, [PAIRS]),
        (leaking_one, [HIDDEN, PAIRS]),
    ],
    ids=["left-aligned", "one key too few", "one key too many", "without the last cached", "without itself", "leak"],
)
def test_wrong_masks_fail(mask, found):
    """And the message says by what."""
    with pytest.raises(VerificationError) as caught:
        verify(build(Masked(mask)))
    for part in found:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("fused", "found"),
    [(OtherSlots(), [PAIRS]), (NextSlot(), [HIDDEN, PAIRS]), (Restarting(), [HIDDEN])],
    ids=["slots exchanged", "slots shifted", "positions restarted"],
)
def test_wrong_slots_and_positions_fail(fused, found):
    """The cache is written and read by the slot mapping and the block table, positions count from the prompt."""
    with pytest.raises(VerificationError) as caught:
        verify(build(fused=fused))
    for part in found:
        assert part in str(caught.value)


def test_the_pages_of_another_request_fail():
    """Beside decodes only: alone, a prompt is the first request."""
    with pytest.raises(VerificationError, match="beside 3 decodes") as caught:
        verify(build(FirstPages()))
    assert f"a prompt of {PROMPT} tokens in {len(CHUNKS)} chunks against at once, hidden states: " not in str(
        caught.value
    )


def test_wrong_masks_fail_in_bfloat16_too():
    """A wide tolerance does not hide them."""
    import torch

    for mask in (left_aligned, causal(-1), causal(1), without_itself):
        with pytest.raises(VerificationError):
            verify(build(Masked(mask), dtype=torch.bfloat16))


def test_what_is_not_a_number_fails():
    """No comparison with it holds."""
    assert not Check("x", float("nan"), 1.0).passed
    assert "WRONG" in str(Check("x", float("inf"), 1.0))


def test_tolerance_of_the_type():
    """Float32 is a thousand times as exact; twice the error at four times the layers."""
    import torch

    assert tolerance(32, torch.bfloat16) == pytest.approx(1.5 * 33**0.5 * 2**-7, rel=1e-2)
    assert tolerance(2, torch.float32) < 3e-5
    assert tolerance(7, torch.float16) == pytest.approx(2 * tolerance(1, torch.float16))


@needs_gpu
@pytest.mark.parametrize("backend", [FlashAttention2, VllmFlashAttention3])
@pytest.mark.parametrize("layers", [2, 32])
def test_flash_attention_passes(backend, layers):
    """On the GPU, in bfloat16, with the head dimension and grouping of Llama 3."""
    import torch

    try:
        kernel = backend()
    except ImportError as error:
        pytest.skip(str(error))
    llama = replace(
        TINY, num_hidden_layers=layers, hidden_size=1024, num_attention_heads=8, num_key_value_heads=2, head_dim=128,
        intermediate_size=2048, vocab_size=4096,
    )  # fmt: skip
    fused, _ = choose_fused("cuda")
    assert verify(build(kernel, fused, llama, torch.bfloat16, device="cuda"))
