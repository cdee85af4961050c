"""What is measured, and in which order."""

import pytest

from profiler.grid import LINEAR_OPERATORS, Limits, Point, control_points, kv_tokens, plan, token_counts
from simulator.cost_table import OPERATORS


@pytest.mark.parametrize("operator", LINEAR_OPERATORS)
def test_every_multiple_of_64_to_1024(operator):
    """The scan for cliffs begins there; 256 to 257 and 512 to 513 are told without it too."""
    measured = {point.tokens for point in plan(Limits()) if point.operator == operator}
    assert {*range(64, 1025, 64), 257, 513} <= measured
    assert {1, 2, 4, 8, 16, 32, 2048, 4096, 8192} <= measured


def test_coarser_above_1024_tokens():
    """A dense grid to 8192 would take minutes and show little."""
    assert len([count for count in token_counts(8192) if count > 1025]) < 40


def test_the_plan_has_every_operator_and_no_point_twice():
    """Each operator of the cost table is there."""
    points = plan(Limits())
    assert {point.operator for point in points} == set(OPERATORS)
    assert len(set(points)) == len(points) < 1000


def test_attention_covers_prefill_decode_and_hybrid():
    """Chunks and decode batches at contexts, and some 260 mixed calls, part of them late in a prompt."""
    attention = [point for point in plan(Limits()) if point.operator == "attention"]
    hybrids = [point for point in attention if point.decodes and point.prefills]
    assert Point("attention", prefills=1, prefill_tokens=512, prefill_context=4096) in attention
    assert Point("attention", decodes=256, decode_context=1024) in attention
    assert 250 <= len(hybrids) <= 280
    assert {point.prefill_context for point in hybrids} == {0, 1024, 4096, 8192}


def test_limits_bound_the_grid():
    """No step over --max-tokens, no call over --max-kv-tokens, pages counted whole."""
    limits = Limits(max_tokens=257, max_kv_tokens=4096, page_size=256)
    points = plan(limits)
    assert max(point.tokens for point in points) == 257
    assert max(point.sequences for point in points) <= 257
    assert all(point.decodes + point.prefills * point.prefill_tokens <= 257 for point in points)
    assert max(kv_tokens(point, 256) for point in points) == 4096
    assert Point("attention", decodes=32, decode_context=16) not in points  # 32 pages of 256


def test_the_coarse_pass_comes_first_and_alone_is_a_quick_plan():
    """A table cut short spans the whole grid."""
    coarse, whole = plan(Limits(), coarse=True), plan(Limits())
    assert whole[: len(coarse)] == coarse
    assert {point.operator for point in coarse} == set(OPERATORS)
    assert {256, 257} <= {point.tokens for point in coarse}
    assert len(coarse) < len(whole) / 4


def test_control_points_are_planned_points():
    """They are measured at the beginning and at the end; a small plan has a few too."""
    points = plan(Limits())
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
