"""What is measured, and in which order."""

import pytest

from profiler.grid import (
    LINEAR_OPERATORS,
    Limits,
    Point,
    chunk_sizes,
    control_points,
    decode_points,
    kv_tokens,
    plan,
    token_counts,
)
from simulator.attention.kernels import kernel_of
from simulator.models import load_model
from simulator.table_rows import OPERATORS

FA2, FA3 = (kernel_of(name, load_model("llama-3.1-8b"), 132) for name in ("flash-attn", "vllm-flash-attn"))


@pytest.mark.parametrize("operator", LINEAR_OPERATORS)
def test_every_multiple_of_64_to_1024(operator):
    """The scan for cliffs begins there; 256 to 257 and 512 to 513 are told without it too."""
    measured = {point.tokens for point in plan(Limits(), FA3) if point.operator == operator}
    assert {*range(64, 1025, 64), 257, 513} <= measured
    assert {1, 2, 4, 8, 16, 32, 2048, 4096, 8192} <= measured


def test_coarser_above_1024_tokens():
    """A dense grid to 8192 would take minutes and show little."""
    assert len([count for count in token_counts(8192) if count > 1025]) < 40


def test_the_plan_has_every_operator_and_no_point_twice():
    """Each operator of the cost table is there."""
    points = plan(Limits(), FA3)
    assert {point.operator for point in points} == set(OPERATORS)
    assert len(set(points)) == len(points) < 1000


def test_attention_covers_prefill_decode_and_hybrid():
    """Chunks and decode batches at contexts, and some 110 mixed calls, part of them late in a prompt."""
    attention = [point for point in plan(Limits(), FA3) if point.operator == "attention"]
    hybrids = [point for point in attention if point.decodes and point.prefills]
    assert Point("attention", prefills=1, prefill_tokens=512, prefill_context=4096) in attention
    assert Point("attention", decodes=256, decode_context=1024) in attention
    assert 100 <= len(hybrids) <= 120
    assert {point.prefill_context for point in hybrids} == {0, 1024, 4096}


def test_contexts_of_decodes_differ_in_part():
    """Alone and beside a chunk; the longest of a call is longer than the mean, and no longer than their sum."""
    unlike = [point for point in plan(Limits(), FA3) if point.decode_longest]
    assert {bool(point.prefills) for point in unlike} == {True, False}
    assert all(point.decode_context < point.decode_longest < point.decodes * point.decode_context for point in unlike)
    assert not any(point.decode_longest for point in plan(Limits(), FA3, coarse=True))


def test_chunks_at_both_sides_of_where_the_schedule_changes():
    """132 multiprocessors hold 16 tiles of 32 tokens of each of 8 KV heads, 4 of 64 tokens of each of 32 heads."""
    assert {13 * 32, 13 * 32 + 1, 16 * 32, 16 * 32 + 1} <= set(chunk_sizes(FA3))
    assert {4 * 64, 4 * 64 + 1} <= set(chunk_sizes(FA2))


def test_decodes_at_both_sides_of_where_flash_attention_2_stops_splitting():
    """8 KV heads on 2 x 132 slots: 26 decodes fill less than 80 % of them, 27 more. FlashAttention-3 has no edge."""
    counts = [{point.decodes for point in decode_points(kernel)} for kernel in (FA2, FA3)]
    assert {26, 27} <= counts[0]
    assert not {26, 27} & counts[1]


def test_limits_bound_the_grid():
    """No step over --max-tokens, no call over --max-kv-tokens, pages counted whole."""
    limits = Limits(max_tokens=257, max_kv_tokens=4096, page_size=256)
    points = plan(limits, FA3)
    assert max(point.tokens for point in points) == 257
    assert max(point.sequences for point in points) <= 257
    assert all(point.decodes + point.prefills * point.prefill_tokens <= 257 for point in points)
    assert max(kv_tokens(point, 256) for point in points) == 4096
    assert Point("attention", decodes=32, decode_context=16) not in points  # 32 pages of 256


def test_the_coarse_pass_comes_first_and_alone_is_a_quick_plan():
    """A table cut short spans the whole grid."""
    coarse, whole = plan(Limits(), FA3, coarse=True), plan(Limits(), FA3)
    assert whole[: len(coarse)] == coarse
    assert {point.operator for point in coarse} == set(OPERATORS)
    assert {256, 257} <= {point.tokens for point in coarse}
    assert len(coarse) < len(whole) / 4


def test_control_points_are_planned_points():
    """They are measured at the beginning and at the end; a small plan has a few too."""
    points = plan(Limits(), FA3)
    assert len(control_points(points)) == 8
    assert set(control_points(points)) <= set(points)
    tiny = [Point("mlp", tokens=count) for count in range(1, 10)]
    assert 2 <= len(control_points(tiny)) <= 4


def test_points_read_as_words():
    """They show in the progress and in the notes of a table."""
    assert str(Point("mlp", tokens=257)) == "mlp of 257"
    assert str(Point("lm_head", sequences=8)) == "lm_head of 8"
    hybrid = Point("attention", decodes=3, decode_context=99, prefills=1, prefill_tokens=64, prefill_context=5)
    assert str(hybrid) == "attention of 3 decodes at 99 + 1 x 64 after 5"
