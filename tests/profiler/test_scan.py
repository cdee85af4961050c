"""The scan over all operators with a made-up clock: rows, cliffs, the layer, interruptions, time."""

import time

import numpy as np
import pytest

from profiler.cliffs import find_cliffs
from profiler.grid import LINEAR_OPERATORS, SEQUENCES, Point, token_counts
from profiler.scan import SCANNED, Scan, pair_rows, scan
from profiler.staircase import Aims
from profiler.sweep import Measured, row_of
from profiler.timing import Timing
from tests.profiler.machines import needs_gpu
from tests.profiler.staircases import Stairs, StairsClock, grid_points

STEPS = {
    "mlp": Stairs({256: 0.14, 448: -0.22}, base=100),
    "qkv_proj": Stairs({256: 0.10, 1100: 0.12}, base=20),
    "o_proj": Stairs({512: 0.08}, base=12),
    "lm_head": Stairs({256: 0.06}, base=300),
}


def _clock():
    return StairsClock(
        {
            name: Stairs(own.steps, own.base, noise=0.003, generator=np.random.default_rng(place))
            for place, (name, own) in enumerate(STEPS.items())
        }
    )


def _grid(clock):
    points = [*grid_points(LINEAR_OPERATORS, token_counts(8192)), *grid_points(["lm_head"], SEQUENCES)]
    return Measured({point: clock.measure(point) for point in points})


def _scanned(clock, measured, seconds=60.0):
    saves = []
    work = Scan(clock, measured, Aims(), time.monotonic() + seconds, lambda *_: None, lambda: saves.append(1))
    work.run()
    return saves


@pytest.fixture(scope="module")
def whole():
    """A whole scan: (rows and cliffs, saves)."""
    clock = _clock()
    measured = _grid(clock)
    return measured, _scanned(clock, measured)


def test_every_step_of_every_operator_is_found(whole):
    """Up, down, off the grid; each with an interval that holds its true size, or nearly."""
    measured, _ = whole
    found = {(cliff.operator, cliff.tokens): cliff for cliff in measured.cliffs}
    for name, stairs in STEPS.items():
        for tokens in stairs.steps:
            assert found[name, tokens].growth == pytest.approx(stairs.growth(tokens), abs=0.012)
            assert found[name, tokens].rounds >= 3


def test_both_sides_of_a_step_are_rows_with_its_ratio(whole):
    """So the price keeps the cliff."""
    measured, _ = whole
    for cliff in measured.cliffs:
        place = "sequences" if cliff.operator == "lm_head" else "tokens"
        below, above = (measured.rows[Point(cliff.operator, **{place: cliff.tokens + one})] for one in (0, 1))
        assert above["time_us"] / below["time_us"] - 1 == pytest.approx(cliff.growth, abs=1e-9)


def test_a_large_step_of_one_product_is_compared_in_the_others(whole):
    """So the layer's step has an interval of comparisons: (100 x 14 % + 20 x 10 %) of 132 at 256 tokens."""
    measured, _ = whole
    [layer] = [cliff for cliff in find_cliffs(measured.frame(), measured.cliffs) if str(cliff.operator) == "layer"
               and cliff.tokens == 256]  # fmt: skip
    assert layer.rounds >= 3
    true = sum(STEPS[name].true(256) * STEPS[name].growth(256) for name in LINEAR_OPERATORS)
    assert layer.growth == pytest.approx(true / sum(STEPS[name].true(256) for name in LINEAR_OPERATORS), abs=0.01)
    assert layer.low < layer.growth < layer.high
    assert layer.error < 0.012


def test_a_finished_scan_says_nothing_and_saves_as_it_goes(whole):
    """After each operator."""
    measured, saves = whole
    assert measured.notes == []
    assert len(saves) > len(SCANNED)


def test_a_scan_without_time_keeps_the_table_and_says_so():
    """No question is asked."""
    clock = _clock()
    measured = _grid(clock)
    rows = dict(measured.rows)
    _scanned(clock, measured, seconds=0.0)
    assert (measured.rows, measured.cliffs) == (rows, [])
    [note] = measured.notes
    assert note.startswith("the time for the scan was over: mlp, qkv_proj, o_proj, lm_head may have more cliffs")


def test_an_interrupted_scan_keeps_its_cliffs_and_is_resumed():
    """Ctrl-C at the 60th question; afterwards what is known is not compared again."""
    clock = _clock()
    measured = _grid(clock)
    compare, first = clock.compare, len(clock.asked)

    def interrupted(*pair):
        if len(clock.asked) - first > 40:
            raise KeyboardInterrupt
        return compare(*pair)

    clock.compare = interrupted
    with pytest.raises(KeyboardInterrupt):
        _scanned(clock, measured)
    known = list(measured.cliffs)
    assert known
    clock.compare, asked = compare, []
    resumed = Measured(dict(measured.rows), cliffs=known)
    clock.asked = asked
    _scanned(clock, resumed)
    assert set(known) <= set(resumed.cliffs)


def test_out_of_memory_ends_the_scan_of_that_operator_with_a_note():
    """The others are scanned."""
    clock = _clock()
    measured = _grid(clock)
    measure = clock.measure

    def refusing(point):
        if point.operator == "mlp":
            raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")
        return measure(point)

    clock.measure = refusing
    _scanned(clock, measured)
    assert "broke off the scan of mlp: out of memory" in measured.notes
    assert {cliff.operator for cliff in measured.cliffs} >= {"qkv_proj", "o_proj", "lm_head"}


def test_a_budget_leaves_the_scan_a_part_of_itself():
    """With a deadline in the past it asks nothing."""
    clock = _clock()
    measured = _grid(clock)
    asked = scan("cuda", clock, measured, time.monotonic() - 1, report=lambda *_: None, save=lambda: None)
    assert asked == 0


def test_a_pair_s_rows_have_the_level_of_the_rounds_and_the_ratio_of_the_mean():
    """Rounds of 100 and 110, 104 and 114.4: a ratio of 1.1 at the mean of both sides' levels."""
    rounds = [
        tuple(row_of(Point("mlp", tokens=size), Timing(time, 0.99 * time, 1.02 * time, 9), 1800.0)
              for size, time in zip((256, 257), times, strict=True))
        for times in ((100.0, 110.0), (104.0, 114.4))
    ]  # fmt: skip
    below, above = pair_rows(rounds, 0.1)
    assert below["time_us"] == pytest.approx(102.0)
    assert above["time_us"] == pytest.approx(112.2)
    assert above["p90_us"] == pytest.approx(1.02 * 112.2)
    assert (below["repeats"], below["tokens"], above["tokens"]) == (18, 256, 257)


@pytest.mark.torch
@needs_gpu
def test_a_scan_on_a_gpu_finds_steps_with_narrow_intervals():
    """Some seconds on the matrix products of a small real shape: steps are compared, most of them to 2 %."""
    import torch

    from profiler.clocks import ClockSampler
    from profiler.fused import choose_fused
    from profiler.operators import Bench
    from profiler.sweep import Workshop
    from profiler.timing import CudaTimer, warm_gpu
    from simulator.models import load_model

    bench = Bench(load_model("llama-3.1-8b"), "cuda", torch.bfloat16, choose_fused("cuda")[0], 2048, 60 * 2**20)
    warm_gpu(1.0)
    with ClockSampler("cuda") as clocks:
        workshop = Workshop(bench, lambda: pytest.fail("no attention is timed"), CudaTimer(), clocks)
        points = grid_points(LINEAR_OPERATORS, token_counts(2048))
        measured = Measured({point: workshop.measure(point) for point in points})
        Scan(workshop, measured, Aims(), time.monotonic() + 40.0, lambda *_: None, lambda: None).run()
    assert measured.cliffs
    assert np.median([cliff.error for cliff in measured.cliffs]) < 0.02
    for cliff in measured.cliffs:
        assert {cliff.tokens, cliff.tokens + 1} <= {point.tokens for point in measured.rows}
