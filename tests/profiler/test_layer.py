"""What kernels in turn take beyond their sum: the order of a layer, and the difference of times."""

import pytest

from profiler.attention import TorchAttention
from profiler.fused import TorchFused
from profiler.layer import DECODES, turns_us
from profiler.operators import Bench
from profiler.paged import PagedAttention
from profiler.timing import Timing
from tests.profiler.machines import TINY, needs_torch

pytestmark = needs_torch


class Recording(TorchFused):
    """Names each call of an elementwise function."""

    def __init__(self):
        self.names = []

    def __getattribute__(self, name):
        if name in ("add_rms_norm", "rotary_", "write_kv_", "silu_mul"):
            self.names.append(name)
        return super().__getattribute__(name)


class FakeTimer:
    """Runs the last call given; each timing takes `times` in turn, round and round."""

    def __init__(self, times, after=lambda: None):
        self.times, self.asked, self.after = times, 0, after

    def time(self, calls):
        self.after()
        calls[-1]()
        time_us = self.times[self.asked % len(self.times)]
        self.asked += 1
        return Timing(time_us, time_us, time_us, 1)


def _turns(times, fused=None, after=lambda: None):
    import torch

    bench = Bench(TINY, "cpu", torch.float32, fused or TorchFused(), max_tokens=8, l2_bytes=0)
    attention = PagedAttention(TorchAttention(), TINY, "cpu", torch.float32, pages=64 * 16 * 2, l2_bytes=0)
    timer = FakeTimer(times, after)
    return turns_us(bench, attention, timer), timer


def test_it_is_the_layer_less_its_operators():
    """A layer of 70 us, its five operators 10, 11, 12, 13 and 14 us: 10 us; at every number of decodes."""
    turns, timer = _turns([70.0, 10.0, 11.0, 12.0, 13.0, 14.0])
    assert turns == pytest.approx(10.0)
    assert timer.asked == 6 * len(DECODES)


def test_it_is_never_negative():
    """Noise may make the sum the larger."""
    assert _turns([40.0, 10.0, 11.0, 12.0, 13.0, 14.0])[0] == 0.0


def test_kernels_come_in_a_layer_s_order():
    """Norm, (QKV), rotary and write, (attention, output), norm, MLP."""
    fused = Recording()
    starts = []
    _turns([1.0], fused, after=lambda: starts.append(len(fused.names)))
    assert fused.names[starts[0] : starts[1]] == [
        "add_rms_norm",
        "rotary_",
        "write_kv_",
        "add_rms_norm",
        "silu_mul",
    ]
