"""Fits give back the mode that a log was made with, and say what a log does not tell."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.costs import LinearCosts
from simulator.engines.fit import fit_mode
from simulator.engines.fit_line import robust_line
from simulator.engines.profile import Aftermath, HostTime, Launch, Mode
from tests.simulator.engines_fit.synthetic import ASYNC, SYNC, Batch, batches, fit_log, run

STEPS = batches(2500)
START = Mode(
    schedule=HostTime(1, 2),
    update=HostTime(3, 4),
    between=HostTime(5, 6),
    full=Launch(HostTime(7, 8), gpu=HostTime(9, 10)),
    piecewise=Launch(HostTime(11, 12), layer_us=13, gpu=HostTime(14, 10)),
    eager=Launch(HostTime(15, 16), layer_us=17, gpu=HostTime(18, 10)),
    aftermath=Aftermath(19, 20),
)
"""A start whose parts are all known when they are met again."""


def close(found: HostTime, made: HostTime, relative: float = 0.05) -> bool:
    """Whether two lines agree at 5, 20 and 50 sequences."""
    return all(
        found.step_us + found.sequence_us * n
        == pytest.approx(made.step_us + made.sequence_us * n, rel=relative, abs=10)
        for n in (5, 20, 50)
    )


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_a_synchronous_mode_comes_back(tmp_path, jitter):
    """Within a few per cent, with and without steps that the operating system held up."""
    log = fit_log(tmp_path / "log", STEPS, run(STEPS, SYNC, in_flight=False, jitter=jitter))
    fitted = fit_mode([log], START)
    assert fitted.unidentified == ()
    for name in ("schedule", "update", "between"):
        assert close(getattr(fitted.mode, name), getattr(SYNC, name)), name
    for name in ("full", "piecewise", "eager"):
        found, made = getattr(fitted.mode, name), getattr(SYNC, name)
        assert close(found.prepare, made.prepare, 0.08), name
        assert found.layer_us == pytest.approx(made.layer_us, rel=0.05), name
    assert fitted.mode.aftermath.steps == 10
    assert fitted.mode.aftermath.step_us == pytest.approx(350, rel=0.1)
    assert fitted.mode.collect_us == 0


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_an_asynchronous_mode_comes_back(tmp_path, jitter):
    """What it tells; how inputs are prepared is the start's."""
    log = fit_log(tmp_path / "log", STEPS, run(STEPS, ASYNC, in_flight=True, jitter=jitter))
    start = replace(START, **{name: replace(getattr(START, name), prepare=getattr(ASYNC, name).prepare)
                              for name in ("full", "piecewise", "eager")})  # fmt: skip
    fitted = fit_mode([log], start)
    for name in ("schedule", "update", "between"):
        assert close(getattr(fitted.mode, name), getattr(ASYNC, name)), name
    assert close(fitted.mode.full.gpu, ASYNC.full.gpu)
    for name in ("piecewise", "eager"):
        found, made = getattr(fitted.mode, name), getattr(ASYNC, name)
        assert found.layer_us == pytest.approx(made.layer_us, rel=0.05), name
        assert found.prepare == made.prepare
        assert close(found.gpu, made.gpu, 0.15), name
    named = [line.split(":")[0] for line in fitted.unidentified]
    assert named == ["full.layer_us", "prepare, collect_us, aftermath"]
    assert (fitted.mode.full.layer_us, fitted.mode.aftermath) == (0, START.aftermath)


def test_a_gpu_that_waits_for_the_host_is_not_slow(tmp_path):
    """Steps of 3 ms do not hide 4 ms of preparing: what the GPU does then is no time of its own."""
    quick = LinearCosts(fixed_ns=3_000_000, per_token_ns=12_000)
    log = fit_log(tmp_path / "log", STEPS, run(STEPS, ASYNC, in_flight=True, costs=quick), quick)
    start = replace(START, eager=replace(START.eager, prepare=ASYNC.eager.prepare))
    fitted = fit_mode([log], start)
    assert fitted.mode.eager.gpu == START.eager.gpu
    assert any(line.startswith("eager.gpu: ") for line in fitted.unidentified)


def test_steps_that_are_not_used_do_not_matter(tmp_path):
    """The half held out may hold anything."""
    clock = run(STEPS, SYNC, in_flight=False)
    used = np.arange(len(STEPS)) < len(STEPS) // 2
    slow = replace(SYNC, full=Launch(HostTime(50_000)), schedule=HostTime(9_000))
    other = run(STEPS, slow, in_flight=False)
    half = fit_log(tmp_path / "log", STEPS, clock)
    shift = clock.updated[len(STEPS) // 2] - other.updated[len(STEPS) // 2] + 1
    for name in ("start", "end", "ready", "updated"):
        getattr(clock, name)[len(STEPS) // 2 :] = [
            time + shift + 10 for time in getattr(other, name)[len(STEPS) // 2 :]
        ]
    mixed = fit_log(tmp_path / "log", STEPS, clock)
    assert fit_mode([replace(mixed, used=used)], START) == fit_mode([replace(half, used=used)], START)


def test_a_few_steps_tell_nothing(tmp_path):
    """All parts are named and kept as they were."""
    for number in (1, 2, 19):
        steps = batches(number)
        fitted = fit_mode([fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False))], START)
        assert replace(fitted.mode, full=START.full) == START
        assert {line.split(":")[0] for line in fitted.unidentified} == {
            "schedule", "update", "between", "full", "piecewise", "eager"
        }  # fmt: skip


def test_without_prefills_their_parts_are_kept(tmp_path):
    """And so is what follows an eager step."""
    steps = [replace(step, chunks=()) for step in STEPS[1:]]
    fitted = fit_mode([fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False))], START)
    assert close(fitted.mode.full.prepare, SYNC.full.prepare)
    assert (fitted.mode.piecewise, fitted.mode.eager) == (START.piecewise, START.eager)
    assert fitted.mode.aftermath == START.aftermath
    named = [line.split(":")[0] for line in fitted.unidentified]
    assert named == ["piecewise", "eager", "aftermath"]


def test_without_decodes_their_parts_are_kept(tmp_path):
    """Prompts one after the other: the engine is idle before each, so nothing is between steps."""
    steps = [Batch(0, 0, ((request, 0, 600 + request),)) for request in range(200)]
    fitted = fit_mode([fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False))], START)
    assert (fitted.mode.full, fitted.mode.between) == (START.full, START.between)
    named = [line.split(":")[0] for line in fitted.unidentified]
    assert {"between", "full", "piecewise", "prepare.sequence_us", "aftermath"} <= set(named)


def test_steps_of_one_size_tell_no_time_by_sequences(tmp_path):
    """That part is kept, and the rest is such that these steps are predicted."""
    steps = [Batch(7, 7000 + step) for step in range(300)]
    start = replace(START, full=Launch(HostTime(0, 20)))
    fitted = fit_mode([fit_log(tmp_path / "log", steps, run(steps, SYNC, in_flight=False))], start)
    assert fitted.mode.schedule.sequence_us == START.schedule.sequence_us
    assert fitted.mode.schedule.step_us == pytest.approx(90 + 7 * 10 - 7 * 2, abs=1)
    assert fitted.mode.full.prepare.sequence_us == 20
    assert fitted.mode.full.prepare.step_us == pytest.approx(1200 + 7 * 12 - 7 * 20, rel=0.02)
    assert "schedule.sequence_us: all steps have 7 sequences; kept as it was" in fitted.unidentified


def test_launches_that_the_gpu_hides_are_kept(tmp_path):
    """Prompts that take the GPU longer than their launch tell nothing of it."""
    steps = batches(3000, prompts=(512, 5000))
    slow = replace(SYNC, piecewise=replace(SYNC.piecewise, layer_us=50), eager=replace(SYNC.eager, layer_us=100))
    fitted = fit_mode([fit_log(tmp_path / "log", steps, run(steps, slow, in_flight=False))], START)
    assert (fitted.mode.piecewise.layer_us, fitted.mode.eager.layer_us) == (13, 17)
    for name in ("piecewise", "eager"):
        assert any(line.startswith(f"{name}.layer_us: 0 launch-bound steps") for line in fitted.unidentified), name


def test_a_step_that_took_no_time_is_left_out(tmp_path):
    """A clock of coarse ticks may say so."""
    clock = run(STEPS, SYNC, in_flight=False)
    clock.ready[500] = clock.end[500]
    fitted = fit_mode([fit_log(tmp_path / "log", STEPS, clock)], START)
    assert close(fitted.mode.full.prepare, SYNC.full.prepare, 0.08)


def test_several_logs_are_fitted_together(tmp_path):
    """Of two hosts, one half a millisecond slower, comes one between them."""
    slower = replace(SYNC, full=Launch(HostTime(1700, 12)))
    logs = [fit_log(tmp_path / "log", STEPS, run(STEPS, mode, in_flight=False)) for mode in (SYNC, slower)]
    assert 1300 < fit_mode(logs, START).mode.full.prepare.step_us < 1600


def test_outliers_hardly_bend_a_line():
    """One value in twenty of a hundred times the size: the mean is six times what it should be."""
    sequences = np.tile(np.arange(1, 51), 20)
    seconds = 1e-6 * (100 + 10 * sequences)
    seconds[::20] *= 100
    assert close(robust_line(sequences, seconds), HostTime(100, 10), 0.25)
    assert robust_line(sequences[:0], seconds[:0]) == HostTime()


def test_no_time_is_negative():
    """A line that falls is level, one below 0 is 0."""
    sequences = np.tile(np.arange(1, 51), 20)
    falling = robust_line(sequences, 1e-6 * (100 - sequences))
    assert falling.sequence_us == pytest.approx(0, abs=0.01)
    assert 50 < falling.step_us < 100
    below = robust_line(sequences, -1e-6 * sequences)
    assert (below.step_us, below.sequence_us) == pytest.approx((0, 0), abs=0.01)


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_launches_of_workers_come_back(tmp_path, jitter):
    """From outputs of steps of up to some 1,200 tokens: their launch takes 22 ms, and the GPU less. Those that the GPU
    bounds tell nothing, however many there are."""
    steps, made = batches(2500, prompts=(560, 900, 3000)), replace(ASYNC, eager=replace(ASYNC.eager, layer_us=700))
    log = fit_log(tmp_path / "log", steps, run(steps, made, in_flight=True, workers=True, jitter=jitter), workers=True)
    assert fit_mode([log], ASYNC).mode.eager.layer_us == pytest.approx(700, rel=0.03)


def test_launches_of_workers_that_the_gpu_hides_are_kept(tmp_path):
    """All prompts are of 1,500 tokens and more: 24 ms on the GPU."""
    steps = batches(1500, prompts=(3000,))
    log = fit_log(tmp_path / "log", steps, run(steps, ASYNC, in_flight=True, workers=True), workers=True)
    fitted = fit_mode([log], replace(ASYNC, eager=replace(ASYNC.eager, layer_us=321)))
    assert fitted.mode.eager.layer_us == 321
    assert any("eager.layer_us: " in line and "launch-bound, too few" in line for line in fitted.unidentified)
