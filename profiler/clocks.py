"""The SM clock of the GPU while it works, its power draw, and why it lowers its clock. Nothing here changes a setting.

NVML is asked where its Python package is installed, else `nvidia-smi`, whose every answer takes a while. What neither
tells is left out.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any

from profiler.device import nvidia_smi, uuid_of_gpu

NAN = float("nan")
NVML_PAUSE_S, NVIDIA_SMI_PAUSE_S = 0.05, 0.5
# NVML's bits of the reasons for a lower clock, but for an idle GPU and a clock that somebody asked for
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """At `taken_s` (`time.monotonic`): SM clock, power draw (NaN if unknown), and bits of REASONS (None if unknown)."""

    taken_s: float
    sm_mhz: float
    power_w: float = NAN
    reasons: int | None = None


def _nvml_reader() -> Callable[[], Reading]:
    """Raises whatever NVML raises where it is missing or knows no such GPU."""
    import pynvml

    pynvml.nvmlInit()
    uuid = uuid_of_gpu()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    # the newer name, the older one, and neither
    reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
        pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )

    def read() -> Reading:
        return Reading(
            time.monotonic(),
            float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            _or(NAN, lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            _or(None, lambda: int(reasons(handle))) if reasons else None,
        )

    return read


def _or(otherwise: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # this GPU or driver does not tell; the other readings are worth having
        return otherwise


def _nvidia_smi_reader() -> Callable[[], Reading]:
    names = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
    # an unknown field would spoil the whole answer
    known = [name for name in names if nvidia_smi(name)[0] is not None][:1]

    def read() -> Reading:
        mhz, watts, *bits = nvidia_smi("clocks.sm", "power.draw", *known)
        reasons = _or(None, lambda: int(str(bits[0]), 16)) if bits else None
        return Reading(time.monotonic(), float(mhz or NAN), _or(NAN, lambda: float(watts or NAN)), reasons)

    return read


def _reader() -> tuple[Callable[[], Reading], float]:
    """(a function that reads once, seconds to wait between readings)."""
    try:
        return _nvml_reader(), NVML_PAUSE_S
    except Exception:  # NVML is a convenience: any failure of it falls back to nvidia-smi
        return _nvidia_smi_reader(), NVIDIA_SMI_PAUSE_S


class ClockSampler:
    """Reads in a thread of its own while the `with` block lasts; on a CPU nothing."""

    def __init__(self, device: str):
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True) if device == "cuda" else None

    def __enter__(self) -> "ClockSampler":
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=15)

    def _sample(self) -> None:
        read, pause_s = _reader()
        while not self._stop.wait(pause_s):
            reading = _or(None, read)
            if reading is not None and reading.sm_mhz == reading.sm_mhz:
                self.readings.append(reading)

    def since(self, start_s: float) -> float:
        """Median MHz since `start_s` (`time.monotonic`), the last one known if there is none; else NaN."""
        latest = self.readings[-200:]
        recent = [reading.sm_mhz for reading in latest if reading.taken_s >= start_s]
        if recent:
            return float(median(recent))
        return latest[-1].sm_mhz if latest else NAN

    def seen(self) -> dict[str, float | None]:
        """Least, median and most MHz of the whole run."""
        return _spread("sm", [reading.sm_mhz for reading in self.readings])

    def power(self) -> dict[str, float | None]:
        """Least, median and most watts of the whole run; empty where nobody tells."""
        watts = [reading.power_w for reading in self.readings if reading.power_w == reading.power_w]
        return _spread("power", watts) if watts else {}

    def throttled(self) -> dict[str, float]:
        """Share of the readings in which the clock was lowered for a reason, by reason; empty where nobody tells."""
        known = [reading.reasons for reading in self.readings if reading.reasons is not None]
        if not known:
            return {}
        return {name: round(sum(bool(bits & bit) for bits in known) / len(known), 4) for bit, name in REASONS.items()}


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    if not values:
        return {f"{name}_min": None, f"{name}_median": None, f"{name}_max": None}
    return {f"{name}_min": min(values), f"{name}_median": float(median(values)), f"{name}_max": max(values)}
