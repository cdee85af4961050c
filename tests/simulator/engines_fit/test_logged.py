"""Logged steps beside the times that a mode predicts of them."""

import numpy as np
import pytest

from simulator.engines.calibrate import BLOCK, fitted_blocks, residuals_of
from simulator.engines.logged import EAGER, EMPTY, FULL, PIECEWISE, predict
from tests.simulator.engines_fit.synthetic import ASYNC, LAYERS, SYNC, Batch, batches, fit_log, run

STEPS = batches(1000)


@pytest.mark.parametrize(("mode", "in_flight"), [(SYNC, False), (ASYNC, True)])
def test_a_mode_predicts_its_own_steps(tmp_path, mode, in_flight):
    """To the microsecond, wherever the log tells; and each output when it came."""
    log = fit_log(tmp_path / "log", STEPS, run(STEPS, mode, in_flight=in_flight))
    assert log.priced.pipelined == in_flight
    found = predict(log.priced, mode, LAYERS)
    told = np.isfinite(found.measured_s)
    assert told.mean() > 0.8
    assert np.abs(found.predicted_s - found.measured_s)[told].max() < 2e-6
    assert np.nanmax(np.abs(found.ahead_s[2:-1])) < 2e-6


def test_outputs_do_not_wait_for_the_launches_of_workers(tmp_path):
    """The log of such an engine is predicted to the microsecond, and as another's it is not."""
    clock = run(STEPS, ASYNC, in_flight=True, workers=True)
    found = predict(fit_log(tmp_path / "log", STEPS, clock, workers=True).priced, ASYNC, LAYERS)
    assert np.isfinite(found.measured_s).mean() > 0.8
    assert np.nanmax(np.abs(found.ahead_s[2:-1])) < 2e-6
    other = predict(fit_log(tmp_path / "log", STEPS, clock).priced, ASYNC, LAYERS)
    assert np.nanmax(np.abs(other.ahead_s[2:-1])) > 0.005


def test_a_step_that_takes_longer_is_off_by_as_much(tmp_path):
    """One of a thousand, by 5 ms."""
    clock = run(STEPS, SYNC, in_flight=False)
    for name in ("ready", "updated"):
        getattr(clock, name)[400] += 0.005
    for name in ("start", "end", "ready", "updated"):
        getattr(clock, name)[401:] = [time + 0.005 for time in getattr(clock, name)[401:]]
    found = predict(fit_log(tmp_path / "log", STEPS, clock).priced, SYNC, LAYERS)
    off = found.measured_s - found.predicted_s
    assert off[400] == pytest.approx(0.005, abs=2e-6)
    assert np.abs(np.delete(off, 400)).max() < 2e-6


def test_steps_run_as_their_size_allows(tmp_path):
    """Captured, captured with chunks, larger than any captured, and empty."""
    steps = [Batch(0, 0, ((0, 0, 512),)), Batch(1, 513), Batch(1, 514, ((1, 0, 512),)), Batch(0, 0), Batch(2, 1100)]
    priced = fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False)).priced
    assert priced.kind.tolist() == [PIECEWISE, FULL, EAGER, EMPTY, FULL]
    assert priced.gpu_s[3] == 0


def test_a_cached_prefix_is_no_sign_of_work(tmp_path):
    """A request's first chunk may have a context; a later chunk of it continues."""
    steps = [Batch(0, 0, ((0, 0, 9),)), Batch(0, 0, ((1, 64, 9),)), Batch(0, 0, ((1, 73, 9),)), Batch(1, 83)]
    priced = fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False)).priced
    assert priced.resumed.tolist() == [False, False, True, True]


@pytest.mark.parametrize(("held_out", "share"), [(0.0, 1.0), (0.5, 0.5), (0.25, 0.75), (0.9, 0.1)])
def test_blocks_are_held_out_in_turn(held_out, share):
    """The share that is asked for, of every stretch of the log."""
    used = fitted_blocks(40 * BLOCK, held_out)
    assert used.mean() == pytest.approx(share, abs=0.03)
    assert used[: 20 * BLOCK].mean() == pytest.approx(share, abs=0.06)
    assert all(len(set(block)) == 1 for block in used.reshape(-1, BLOCK).tolist())


def test_residuals_are_of_parts_and_kinds(tmp_path):
    """Prices without the host's 1.2 ms are too low, by less where the GPU takes longer."""
    steps = batches(1000)
    log = fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False))
    log.used[500:] = False
    rows = residuals_of("log", "synchronous", log, ASYNC)
    assert {(row.fitted, row.kind) for row in rows} == {
        (used, kind)
        for used in (True, False)
        for kind in ("decodes only", "with prefills", "- full graph", "- piecewise", "- eager")
    }
    for used in (True, False):
        of_part = {row.kind: row for row in rows if row.fitted == used}
        assert of_part["decodes only"].steps + of_part["with prefills"].steps == 500
        assert of_part["- piecewise"].steps + of_part["- eager"].steps == of_part["with prefills"].steps
        assert of_part["decodes only"].p95 >= of_part["decodes only"].median >= abs(of_part["decodes only"].bias) - 1e-9
    exact = residuals_of("log", "synchronous", log, SYNC)
    assert all(row.p95 < 0.05 for row in exact)
