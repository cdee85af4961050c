"""The roofline model: cliffs where tiles end, weights streamed, and what attention kernels do with a batch."""

from dataclasses import replace

import pytest

from profiler.grid import Point
from profiler.imports.datasheet import gpu_names, load_hardware
from profiler.imports.gemm import gemm_us
from profiler.imports.roofline import Roofline
from simulator.models import load_model

LLAMA = load_model("llama-3.1-8b")


@pytest.mark.parametrize("gpu", ["a100-80", "a6000", "h100", "h200"])
def test_one_token_more_than_a_tile_can_cost_a_wave(gpu):
    """Somewhere below 1025 tokens one token more costs a tenth more; next to it nothing changes."""
    hardware = load_hardware(gpu)
    times = {m: gemm_us(m, 6144, 4096, hardware) for t in range(64, 1025, 64) for m in (t - 1, t, t + 1)}
    steps = {t: times[t + 1] / times[t] - 1 for t in range(64, 1025, 64)}
    assert max(steps.values()) > 0.10
    assert all(abs(times[t] / times[t - 1] - 1) < 0.02 for t in steps)


def test_257_tokens_cost_much_more_than_256_on_an_a6000():
    """SARATHI's figure 7 shows 32 % for its 13B model, attention and the rest included."""
    roofline = Roofline(load_model("llama-13b"), load_hardware("a6000"))
    before, after = (sum(roofline.product_us(op, m) for op in ("qkv_proj", "o_proj", "mlp")) for m in (256, 257))
    assert 0.15 < after / before - 1 < 0.50


@pytest.mark.parametrize("gpu", gpu_names())
def test_few_tokens_cost_what_reading_the_weights_takes(gpu):
    """Between the datasheet's bandwidth and half of it, and next to nothing more for a second token."""
    hardware = load_hardware(gpu)
    reading = 2 * 16384 * 8192 / hardware.sheet.memory_bandwidth * 1e6
    assert reading < gemm_us(1, 16384, 8192, hardware) < 2 * reading
    assert gemm_us(2, 16384, 8192, hardware) < 1.01 * gemm_us(1, 16384, 8192, hardware)


@pytest.mark.parametrize("gpu", gpu_names())
def test_many_tokens_run_below_the_peak(gpu):
    """At 60 to 95 % of the datasheet's FLOP/s."""
    hardware = load_hardware(gpu)
    share = 2 * 8192 * 8192 * 8192 / (gemm_us(8192, 8192, 8192, hardware) * 1e-6) / hardware.sheet.peak_flops
    assert 0.6 < share < 0.95


def attention(gpu="h200", shape=LLAMA, **place):
    """The time of an attention call."""
    return Roofline(shape, load_hardware(gpu)).time_us(Point("attention", **place))


def test_decode_attention_reads_the_cache():
    """A long call takes as long as reading keys and values, at 60 to 100 % of the bandwidth; twice is twice."""
    time = attention(decodes=128, decode_context=8192)
    reading = 128 * 8192 * 8 * 128 * 2 * 2 / load_hardware("h200").sheet.memory_bandwidth * 1e6
    assert reading < time < reading / 0.6
    assert attention(decodes=256, decode_context=8192) == pytest.approx(2 * time, rel=0.05)


def test_prefill_attention_grows_with_the_area():
    """Four times the tokens are sixteen times the area; context adds to it."""
    long, short = (attention(prefills=1, prefill_tokens=tokens) for tokens in (16384, 4096))
    assert 12 < long / short < 17
    assert attention(prefills=1, prefill_tokens=4096, prefill_context=4096) > 2.5 * short


def test_a_chunk_of_one_row_more_can_cost_a_wave_of_tiles():
    """On 108 multiprocessors 32 heads x 3 tiles of 64 rows are one wave, 32 x 4 are two."""
    before, after = (
        attention("a100-80", prefills=1, prefill_tokens=tokens, prefill_context=8192) for tokens in (192, 193)
    )
    assert 1.5 < after / before < 2.1


def test_flash_attention_2_prices_decodes_dear_beside_a_chunk():
    """More than alone, as measured on an H200 (up to 3.5 times); FlashAttention-3 keeps close to the sum."""
    chunk, decodes = {"prefills": 1, "prefill_tokens": 512}, {"decodes": 64, "decode_context": 1536}
    for gpu, least, most in (("a100-80", 1.3, 4.0), ("h200", 0.7, 1.3)):
        both = attention(gpu, **chunk, **decodes)
        assert least < both / (attention(gpu, **chunk) + attention(gpu, **decodes)) < most


def test_every_operator_has_a_time_that_grows():
    """More tokens never cost less by more than a tile's rounding."""
    roofline = Roofline(LLAMA, load_hardware("a40"))
    for operator in ("qkv_proj", "o_proj", "mlp", "elementwise", "embedding"):
        few, many = (roofline.time_us(Point(operator, tokens=tokens)) for tokens in (1, 4096))
        assert 0 < few < many
    few, many = (roofline.time_us(Point("lm_head", sequences=count)) for count in (1, 1024))
    assert 0 < few < many


def test_elementwise_work_is_what_the_model_has():
    """Without rope less, with one norm instead of two less, with norms by head more, at few tokens and at many."""
    hardware = load_hardware("h200")
    for tokens in (1, 4096):
        usual, learned, single, by_head = (
            Roofline(replace(LLAMA, **keys), hardware).time_us(Point("elementwise", tokens=tokens))
            for keys in ({}, {"position_embedding": "learned"}, {"norms_per_layer": 1}, {"qk_norm": True})
        )
        assert max(learned, single) < usual < by_head


def test_learned_positions_are_looked_up_with_the_tokens():
    """Two rows read instead of one, and their sum written."""
    rope, learned = (
        Roofline(replace(LLAMA, position_embedding=kind), load_hardware("h200")).time_us(
            Point("embedding", tokens=8192)
        )
        for kind in ("rope", "learned")
    )
    assert 2 < learned / rope < 5


def test_a_rank_samples_from_all_logits():
    """The LM head of one of two ranks takes more than half of the whole's."""
    hardware = load_hardware("h200")
    shard = LLAMA.shard(2)
    whole, alone, rank = (
        Roofline(shape, hardware, ranks).time_us(Point("lm_head", sequences=512))
        for shape, ranks in ((LLAMA, 1), (shard, 1), (shard, 2))
    )
    assert whole > rank > alone


def test_an_ungated_mlp_is_two_thirds_of_a_gated_one():
    """One product up instead of two at once."""
    hardware = load_hardware("a100-80")
    gated, plain = (Roofline(replace(LLAMA, gated_mlp=g), hardware).product_us("mlp", 4096) for g in (True, False))
    assert plain / gated == pytest.approx(2 / 3, rel=0.05)
