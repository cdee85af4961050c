"""The operators compute a Llama layer's arithmetic, and are timed over many copies of the weights."""

import pytest

from profiler.fused import TorchFused, check_fused, choose_fused, relative_error, rotary_table
from profiler.grid import Point
from profiler.operators import BUILDERS, Bench, copies_of, linear, mlp, needed_bytes, sample_greedily
from simulator.models import load_model
from tests.profiler.machines import TINY, needs_gpu, needs_torch

pytestmark = needs_torch

MIB = 2**20


@pytest.fixture
def bench():
    import torch

    torch.manual_seed(0)
    return Bench(TINY, "cpu", torch.float32, TorchFused(), max_tokens=64, l2_bytes=0)


def test_norm_adds_the_residual_first():
    """RMS norm of the sum, and the sum for the next residual add."""
    import torch

    x, residual, weight = torch.randn(5, 12), torch.randn(5, 12), torch.randn(12)
    normed, summed = TorchFused().add_rms_norm(x, residual, weight, eps=1e-6)
    torch.testing.assert_close(summed, x + residual)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x + residual, (12,), weight, 1e-6))


def test_rotary_turns_each_pair_by_its_position():
    """Pair (x[i], x[i + half]) is a complex number; at position p it turns by p * base^(-i/half)."""
    import torch

    heads, half = 3, 4
    qkv = torch.randn(6, (heads + 1) * 2 * half)
    positions = torch.tensor([0, 1, 7, 7, 30, 2])
    pairs = torch.complex(*qkv[:, : heads * 2 * half].view(6, heads, 2, half).unbind(2))
    angles = positions[:, None] * 500_000.0 ** (-torch.arange(half) / half)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    rotated, value = qkv.clone(), qkv[:, heads * 2 * half :].clone()
    TorchFused().rotary_(rotated, heads, rotary_table(32, 2 * half, "cpu"), positions)
    actual = torch.complex(*rotated[:, : heads * 2 * half].view(6, heads, 2, half).unbind(2))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rotated[:, heads * 2 * half :], value)


def test_keys_and_values_go_to_their_slots():
    """Slot 21 is place 5 of page 1; other slots stay as they were."""
    import torch

    qkv = torch.randn(1, TINY.qkv_features)
    cache = torch.zeros(2, 3, 16, TINY.num_key_value_heads, TINY.head_dim)
    TorchFused().write_kv_(qkv, cache[0], cache[1], torch.tensor([21]))
    width = TINY.num_key_value_heads * TINY.head_dim
    torch.testing.assert_close(cache[0, 1, 5].flatten(), qkv[0, -2 * width : -width])
    torch.testing.assert_close(cache[1, 1, 5].flatten(), qkv[0, -width:])
    assert cache.count_nonzero() == 2 * width


@pytest.mark.parametrize("gated", [True, False])
def test_mlp(gated):
    """down(silu(gate x) * up x), or down(gelu(up x)) without a gate."""
    import torch
    from torch.nn.functional import gelu, silu

    x, up, gate, down = (torch.randn(size) for size in ((3, 8), (10, 8), (10, 8), (8, 10)))
    expected = (silu(x @ gate.T) * (x @ up.T) if gated else gelu(x @ up.T, approximate="tanh")) @ down.T
    wide = torch.cat([gate, up]) if gated else up
    torch.testing.assert_close(mlp(x, wide, down, TorchFused(), gated), expected, rtol=1e-4, atol=1e-4)


def test_sampling_reads_the_chosen_rows_only():
    """The most likely token of the final norm's output at each request's last position."""
    import torch

    hidden, residual, weight, head = torch.randn(6, 8), torch.randn(6, 8), torch.rand(8), torch.randn(20, 8)
    rows = torch.tensor([1, 5])
    normed = torch.nn.functional.rms_norm(hidden + residual, (8,), weight, 1e-5)
    expected = linear(normed, head).argmax(-1)[rows]
    assert torch.equal(sample_greedily(hidden, residual, rows, weight, head, TorchFused()), expected)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_operator_runs_at_any_size(name, bench):
    """One token and the most; every call is of the size asked for."""
    operator = BUILDERS[name](bench)
    for size in (1, 64):
        point = Point(name, sequences=size) if name == "lm_head" else Point(name, tokens=size)
        outputs = [call() for call in operator.calls(point)]
        assert len(outputs) >= 2
        assert all(output is None or len(output) == size for output in outputs)


def test_weight_copies_exceed_the_l2_six_times():
    """o_proj of Llama 3.1 8B is 32 MiB: 12 copies against 60 MiB of L2; a large LM head needs two."""
    assert copies_of(32 * MIB, 60 * MIB) == 12
    assert copies_of(1000 * MIB, 60 * MIB) == 2
    assert copies_of(32 * MIB, 0) == 2


def test_memory_needed_is_a_few_gib_for_an_8b_model():
    """Two copies of the LM head's 1 GB weight and the activations; not the whole model."""
    assert 2 < needed_bytes(load_model("llama-3.1-8b"), 8192, 60 * MIB, 2) / 2**30 < 5


def test_the_fused_functions_are_checked_against_the_reference():
    """The reference passes exactly; a wrong silu does not."""
    import torch

    class Wrong(TorchFused):
        def silu_mul(self, gate_up):
            return super().silu_mul(gate_up) * 1.05

    assert check_fused(TorchFused(), "cpu", torch.float32) == 0
    assert check_fused(Wrong(), "cpu", torch.float32) > 0.04
    assert choose_fused("cpu")[0].name == "torch"


def test_a_nan_is_an_infinite_error():
    """It never passes for a small one."""
    import torch

    assert relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")


@needs_gpu
def test_triton_kernels_equal_the_reference():
    """In bfloat16, within its rounding."""
    import torch

    assert check_fused(choose_fused("cuda")[0], "cuda", torch.bfloat16) < 1e-2
