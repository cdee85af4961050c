"""How calls become a time: on a CPU for real, on a GPU as a sequence of events with torch.cuda replaced."""

from collections import Counter
from contextlib import contextmanager

import pytest

from profiler.timing import CpuTimer, CudaTimer, Effort, Timing, settled, warm_gpu
from tests.profiler.machines import needs_gpu, needs_torch


def test_a_cpu_sample_is_a_round_over_all_calls():
    """Each call runs equally often: one round to warm up and one a repeat."""
    ran = Counter()
    effort = Effort(measure_ms=0.0, least_repeats=5, noisy_spread=float("inf"))
    timing = CpuTimer(effort).time([lambda: ran.update("a"), lambda: ran.update("b")])
    assert ran == {"a": 6, "b": 6}
    assert timing.repeats == 5
    assert 0 < timing.p10_us <= timing.time_us <= timing.p90_us


def test_a_noisy_point_is_measured_longer():
    """A spread of 50 % is over the limit of 2 %: three times as long. One of 1 % is not."""
    tries = {1: Timing(100.0, 90.0, 140.0, 9), 3: Timing(101.0, 95.0, 110.0, 36)}
    assert settled(tries.__getitem__, Effort()) == tries[3]
    tries[1] = Timing(100.0, 99.5, 100.5, 9)
    assert settled(tries.__getitem__, Effort()) == tries[1]


class FakeGpu:
    """A GPU whose every call takes `call_ms`, `launch_ms` from Python; counts eager, captured and replayed calls."""

    def __init__(self, call_ms, launch_ms=0.0):
        self.call_ms, self.launch_ms, self.now_ms = call_ms, launch_ms, 0.0
        self.captured, self.eager, self.replays, self.capturing, self.rested_ms = [], [], 0, False, 0.0

    def launch(self, name):
        (self.captured if self.capturing else self.eager).append(name)
        if not self.capturing:
            self.now_ms += max(self.call_ms, self.launch_ms)

    def install(self, monkeypatch):
        import torch

        gpu = self

        class Stream:
            def synchronize(self):
                assert not gpu.capturing

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at_ms = gpu.now_ms

            def synchronize(self):
                assert not gpu.capturing

            def elapsed_time(self, end):
                return end.at_ms - self.at_ms

        class Graph:
            def replay(self):
                gpu.replays += 1
                gpu.now_ms += gpu.call_ms * len(gpu.captured)

        @contextmanager
        def capture(graph, stream, capture_error_mode):
            assert isinstance(graph, Graph)
            assert isinstance(stream, Stream)
            assert capture_error_mode == "thread_local"
            gpu.capturing, gpu.captured = True, []
            yield
            gpu.capturing = False

        @contextmanager
        def on_stream(stream):
            assert isinstance(stream, Stream)
            yield

        def sleep(cycles):
            gpu.now_ms += cycles / 1.8e6
            gpu.rested_ms += cycles / 1.8e6

        fakes = {
            "_sleep": sleep,
            "Stream": Stream,
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": capture,
            "stream": on_stream,
        }
        for name, fake in {**fakes, "synchronize": lambda: None}.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        return self


@pytest.mark.torch
@needs_torch[1]
def test_a_gpu_point_is_replays_of_a_graph_over_all_copies(monkeypatch):
    """0.1 ms a call: 25 would fill 2.5 ms, so a graph holds 9 rounds over 3 copies, run before."""
    gpu = FakeGpu(call_ms=0.1).install(monkeypatch)
    timing = CudaTimer().time([lambda name=name: gpu.launch(name) for name in "abc"])
    assert Counter(gpu.captured) == {"a": 9, "b": 9, "c": 9}
    assert gpu.captured[:6] == list("abcabc")
    assert gpu.eager == list("abcabc")
    assert timing.time_us == pytest.approx(100.0)
    assert timing.repeats == 12  # 30 ms of replays of 2.7 ms
    assert gpu.replays == 2 + 3 + 12  # two to learn their length, 12 ms to warm up, rests included
    assert gpu.rested_ms == pytest.approx((3 + 12) * 0.5 * 2.7)


@pytest.mark.torch
@needs_torch[1]
def test_a_graph_is_long_enough_for_the_device_not_for_python(monkeypatch):
    """Launched from Python a call takes 0.5 ms, on the device 0.02: 125 calls fill 2.5 ms, not 5."""
    gpu = FakeGpu(call_ms=0.02, launch_ms=0.5).install(monkeypatch)
    timing = CudaTimer().time([lambda: gpu.launch("a")])
    assert len(gpu.captured) == 125
    assert timing.time_us == pytest.approx(20.0)


@pytest.mark.torch
@needs_torch[1]
def test_a_long_call_is_repeated_at_least_seven_times(monkeypatch):
    """20 ms a call: one round is a graph."""
    gpu = FakeGpu(call_ms=20.0).install(monkeypatch)
    timing = CudaTimer().time([lambda name=name: gpu.launch(name) for name in "ab"])
    assert gpu.captured == ["a", "b"]
    assert timing.repeats == 7
    assert timing.time_us == pytest.approx(20_000.0)


def test_a_cpu_compares_in_turn():
    """One round of each to warm up, then a round of each a repeat."""
    order = []
    effort = Effort(measure_ms=0.0, least_repeats=4, noisy_spread=float("inf"))
    found = CpuTimer(effort).compare([lambda: order.append("a")], [lambda: order.append("b")])
    assert order == list("ab" * 5)
    assert (found.first.repeats, found.second.repeats) == (4, 4)


@pytest.mark.torch
@needs_torch[1]
def test_two_points_are_compared_in_turn_after_a_common_warm_up(monkeypatch):
    """Graphs of 0.1 and 0.12 ms a call: 20 % more; every other pair begins with the second graph."""
    gpu = FakeGpu(call_ms=0.1).install(monkeypatch)
    replayed = []

    def call(name, call_ms):
        def launch():
            gpu.call_ms = call_ms
            gpu.launch(name)

        return launch

    class Graph:
        def replay(self):
            if not hasattr(self, "calls"):
                self.calls, self.call_ms = len(gpu.captured), gpu.call_ms
            replayed.append(self.call_ms)
            gpu.now_ms += self.call_ms * self.calls

    import torch

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: _capturing(gpu))
    found = CudaTimer().compare([call("a", 0.1)], [call("b", 0.12)])
    assert found.growth == pytest.approx(0.2)
    assert (found.first.time_us, found.second.time_us) == (pytest.approx(100.0), pytest.approx(120.0))
    assert replayed[4:12] == [0.1, 0.12, 0.12, 0.1] * 2  # after two replays of each, to learn their length
    assert replayed.count(0.1) == replayed.count(0.12)
    assert found.first.repeats == found.second.repeats >= 7


@contextmanager
def _capturing(gpu):
    gpu.capturing, gpu.captured = True, []
    yield
    gpu.capturing = False


@pytest.mark.torch
@needs_gpu
def test_on_a_gpu_the_same_work_compared_with_itself_differs_by_nothing():
    """Within 1 %; and twice the rows take clearly longer."""
    import torch

    warm_gpu(1.0)
    weights = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    x = torch.randn(2048, 8192, device="cuda", dtype=torch.bfloat16)
    half, whole = ([lambda w=w, n=n: torch.mm(x[:n], w) for w in weights] for n in (1024, 2048))
    assert abs(CudaTimer().compare(whole, whole).growth) < 0.01
    assert CudaTimer().compare(half, whole).growth > 0.5


@pytest.mark.torch
@needs_gpu
def test_a_matrix_product_on_a_gpu_takes_a_plausible_time():
    """4096^3 in bfloat16 is 137 GFLOP: between 30 us and 30 ms on any GPU with tensor cores."""
    import torch

    warm_gpu(0.2)
    matrices = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    timing = CudaTimer().time([lambda matrix=matrix: torch.mm(matrix, matrix) for matrix in matrices])
    assert 30 < timing.time_us < 30_000
