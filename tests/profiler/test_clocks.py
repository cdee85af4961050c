"""Readings of a made-up NVML and nvidia-smi: clocks, power, reasons, and what is missing."""

import sys
import time
from types import SimpleNamespace

import pytest

from profiler import clocks
from profiler.clocks import ClockSampler, Reading
from tests.profiler.machines import needs_gpu


def _sampler(*readings):
    sampler = ClockSampler("cpu")
    sampler.readings = list(readings)
    return sampler


def test_clock_power_and_reasons_of_a_run():
    """Three readings: 1980, 1500 and 1400 MHz, in two of them at the power cap, in one too hot as well."""
    sampler = _sampler(Reading(1, 1980, 300, 0), Reading(2, 1500, 700, 0x4), Reading(3, 1400, 698, 0x4 | 0x40))
    assert sampler.seen() == {"sm_min": 1400, "sm_median": 1500, "sm_max": 1980}
    assert sampler.power() == {"power_min": 300, "power_median": 698, "power_max": 700}
    shares = sampler.throttled()
    assert (shares["power cap"], shares["hardware thermal slowdown"]) == (0.6667, 0.3333)
    assert shares["software thermal slowdown"] == 0
    assert sampler.since(2.5) == 1400
    assert sampler.since(9.0) == 1400


def test_what_nobody_tells_is_left_out():
    """A driver without power and reasons; and no reading at all."""
    assert (_sampler(Reading(1, 1980)).power(), _sampler(Reading(1, 1980)).throttled()) == ({}, {})
    assert _sampler().seen() == {"sm_min": None, "sm_median": None, "sm_max": None}


def _nvml(**more):
    def refuse(*_):
        raise RuntimeError("not supported")

    return SimpleNamespace(
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda *_: 1755,
        nvmlDeviceGetPowerUsage=refuse,
        **more,
    )


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda _: 4}, 4),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 8}, 8),
        ({}, None),
    ],
)
def test_nvml_by_either_name_and_without_power(monkeypatch, more, reasons):
    """The reasons were renamed; a GPU that does not tell its power still tells its clock."""
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(**more))
    monkeypatch.setattr(clocks, "uuid_of_gpu", lambda: "GPU-1")
    read, pause_s = clocks._reader()
    reading = read()
    assert (reading.sm_mhz, reading.reasons, pause_s) == (1755, reasons, clocks.NVML_PAUSE_S)
    assert reading.power_w != reading.power_w


def test_without_nvml_nvidia_smi_is_asked(monkeypatch):
    """An old one, that knows the reasons by their old name."""
    told = {"clocks.sm": "1980", "power.draw": "412.5", "clocks_throttle_reasons.active": "0x0000000000000004"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(clocks, "nvidia_smi", lambda *fields: [told.get(field) for field in fields])
    read, pause_s = clocks._reader()
    reading = read()
    assert (reading.sm_mhz, reading.power_w, reading.reasons) == (1980, 412.5, 4)
    assert pause_s == clocks.NVIDIA_SMI_PAUSE_S


def test_without_any_tool_there_are_no_readings(monkeypatch):
    """A reading of nothing is no reading."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(clocks, "nvidia_smi", lambda *fields: [None] * len(fields))
    monkeypatch.setattr(clocks, "NVIDIA_SMI_PAUSE_S", 0.001)
    with ClockSampler("cuda") as sampler:
        time.sleep(0.05)
    assert sampler.readings == []


@pytest.mark.torch
@needs_gpu
def test_a_gpu_tells_its_clock():
    """Between 100 and 5000 MHz; the power, where it is told, below 2 kW."""
    with ClockSampler("cuda") as sampler:
        time.sleep(2.0)
    assert 100 < sampler.since(0.0) < 5000
    assert all(0 < watts < 2000 for watts in sampler.power().values())
