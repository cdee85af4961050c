"""Counts of work that can be done by hand, of hidden size 48, 6 heads of 8, 2 KV heads, 64 wide, vocabulary 96."""

from dataclasses import replace

import pandas as pd
import pytest

from profiler.grid import Point
from profiler.plot_roofline import ceilings
from profiler.roofline import with_work
from profiler.sweep import row_of
from profiler.timing import Timing
from tests.profiler.test_sweep import METADATA


def _work(point, metadata=METADATA):
    rows = pd.DataFrame([row_of(point, Timing(1.0, 0.9, 1.1, 9), 1800.0)])
    return with_work(rows, metadata).iloc[0]


@pytest.mark.parametrize(
    ("point", "flops", "elements"),
    [
        (Point("qkv_proj", tokens=3), 2 * 3 * 48 * 80, 48 * 80 + 3 * (48 + 80)),
        (Point("o_proj", tokens=1), 2 * 48 * 48, 48 * 48 + 96),
        (Point("mlp", tokens=2), 2 * 2 * 48 * 192, 48 * 192 + 2 * (48 + 128 + 64 + 48 + 128 + 64)),
        (Point("lm_head", sequences=5), 2 * 5 * 48 * 96, 48 * 96 + 5 * (48 + 96)),
        (Point("embedding", tokens=4), 0, 4 * 2 * 48),
        (Point("attention", decodes=2, decode_context=10), 4 * 48 * 20, 2 * 48 * 2 + 2 * 16 * 20),
        (
            Point("attention", prefills=1, prefill_tokens=4, prefill_context=6),
            4 * 48 * (24 + 10),
            2 * 48 * 4 + 2 * 16 * 10,
        ),
    ],
)
def test_work_of_an_operator(point, flops, elements):
    """Two operations a multiply-add, two bytes an element, one microsecond."""
    work = _work(point)
    assert work["flops"] == flops
    assert work["bytes"] == 2 * elements
    assert work["tflops"] == pytest.approx(flops / 1e6)
    assert work["intensity"] == pytest.approx(flops / (2 * elements))


def test_a_shard_does_its_part():
    """Of two GPUs each computes half of the heads and of the MLP."""
    halved = replace(METADATA, tensor_parallel=2)
    for point in (Point("mlp", tokens=2), Point("attention", decodes=2, decode_context=10)):
        assert _work(point, halved)["flops"] == _work(point)["flops"] / 2


def test_an_mlp_without_a_gate_has_two_matrices():
    """Two thirds of the work."""
    plain = replace(METADATA, model=replace(METADATA.model, gated_mlp=False))
    assert _work(Point("mlp", tokens=2), plain)["flops"] == _work(Point("mlp", tokens=2))["flops"] * 2 / 3


def test_the_ceilings_are_the_best_rows():
    """Not the luckiest; small calls, which the cache serves, set no bandwidth."""
    rows = pd.DataFrame(
        {"tflops": [700.0] * 99 + [900.0], "tbytes": [4.0] * 50 + [20.0] * 50, "bytes": [1e8] * 50 + [1e5] * 50}
    )
    assert ceilings(rows) == (700.0, 4.0)


def test_whole_layers_are_left_out():
    """They are the others' work once more."""
    points = [Point(name, tokens=64) for name in ("whole_layer", "mlp")]
    rows = pd.DataFrame([row_of(point, Timing(1.0, 0.9, 1.1, 9), 0.0) for point in points])
    assert with_work(rows, METADATA)["operator"].tolist() == ["mlp"]


@pytest.mark.parametrize(
    ("keys", "elements"),
    [
        ({}, 8 * 48 + 2 * 64 + 3 * 16),
        ({"qk_norm": True}, 8 * 48 + 4 * 64 + 3 * 16),
        ({"position_embedding": "learned", "norms_per_layer": 1}, 4 * 48 + 4 * 16),
    ],
)
def test_elementwise_work_is_what_the_model_has(keys, elements):
    """A norm reads and writes both streams, rope and norms by head queries and keys; the cache takes both."""
    model = replace(METADATA, model=replace(METADATA.model, **keys))
    assert _work(Point("elementwise", tokens=5), model)["bytes"] == 2 * 5 * elements
