"""How a whole step is timed: few runs of it, a rest before each replay, and the host's time apart."""

import pytest

from profiler.step_timing import CpuStepTimer, CudaStepTimer
from tests.profiler.machines import needs_gpu, needs_torch
from tests.profiler.test_timing import FakeGpu

pytestmark = needs_torch


def test_a_long_step_is_run_ten_times(monkeypatch):
    """100 ms: compiled, launched, run twice to learn its length, once to warm up, then five times; 50 ms of rest."""
    gpu = FakeGpu(call_ms=100.0).install(monkeypatch)
    timing = CudaStepTimer().time_step(lambda: gpu.launch("step"))
    assert (len(gpu.eager), gpu.captured, gpu.replays) == (2, ["step"], 2 + 1 + 5)
    assert timing.gpu.time_us == pytest.approx(100_000)
    assert timing.gpu.repeats == 5
    assert gpu.rested_ms == pytest.approx(6 * 50)
    assert timing.host_us < 5000


def test_a_short_step_is_warmed_up_and_repeated(monkeypatch):
    """2 ms: replays and rests of 3 ms for 40 ms, then 80 ms of samples; launched three times for the host's time."""
    gpu = FakeGpu(call_ms=2.0).install(monkeypatch)
    timing = CudaStepTimer().time_step(lambda: gpu.launch("step"))
    assert (len(gpu.eager), gpu.replays, timing.gpu.repeats) == (1 + 3, 2 + 14 + 40, 40)


def test_where_the_host_is_slower_a_replay_tells_the_length(monkeypatch):
    """Launched from Python the GPU seems to take 8 ms, the host's time; a replay takes 1."""
    gpu = FakeGpu(call_ms=1.0, launch_ms=8.0).install(monkeypatch)
    timer = CudaStepTimer()
    monkeypatch.setattr(CudaStepTimer, "_launch_once", lambda *_: (8000.0, 8.0))
    timing = timer.time_step(lambda: gpu.launch("step"))
    assert gpu.replays == 2 + 27 + 40
    assert timing.gpu.time_us == pytest.approx(1000)
    assert timing.host_us == 8000.0


def test_eager_steps_are_launched_one_by_one(monkeypatch):
    """No graph, no rest: 50 ms a step, one to warm up, five samples."""
    gpu = FakeGpu(call_ms=50.0).install(monkeypatch)
    timing = CudaStepTimer(eager=True).time_step(lambda: gpu.launch("step"))
    assert (len(gpu.eager), gpu.captured, gpu.replays) == (2 + 1 + 5, [], 0)
    assert timing.gpu.time_us == pytest.approx(50_000)
    assert gpu.rested_ms == 0


def test_on_a_cpu_both_times_are_one():
    """A launch is the work."""
    timing = CpuStepTimer().time_step(lambda: sum(range(1000)))
    assert timing.host_us == timing.gpu.time_us > 0


@needs_gpu
def test_a_step_on_a_gpu():
    """Ten products of 4096^3 in bfloat16: longer for the GPU than for the host, eagerly as long as from a graph."""
    import torch

    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    step = lambda: [torch.mm(matrix, matrix) for _ in range(10)]  # noqa: E731
    graph, eager = CudaStepTimer().time_step(step), CudaStepTimer(eager=True).time_step(step)
    assert graph.host_us < graph.gpu.time_us
    assert eager.gpu.time_us == pytest.approx(graph.gpu.time_us, rel=0.3)
