"""Facts of the device in use, and its SM clock while it works. Nothing here changes a setting of the GPU."""

import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any

from simulator.cost_table import Gpu
from simulator.errors import InputError

if TYPE_CHECKING:
    import torch

NAN = float("nan")


def require_torch(device: str, command: str = "profile-gpu") -> None:
    """InputError where PyTorch is missing, or sees no GPU although `device` is `cuda`."""
    try:
        import torch
    except ImportError:
        advice = "pip install torch" if device == "cpu" else "`make gpu` installs it, and flash-attn after it"
        raise InputError(f"{command} needs PyTorch: {advice}") from None
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"no NVIDIA GPU: PyTorch {torch.__version__} sees none (`nvidia-smi` tells if the driver does)."
            " A table measured elsewhere needs no GPU; `--device cpu` only tries the program on a tiny model"
        )


def describe(device: str) -> Gpu:
    """What the table's sidecar says of the device; for a CPU, its cores and the machine's memory."""
    if device == "cpu":
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        name = f"CPU ({platform.processor() or platform.machine()})"
        return Gpu(name, memory_bytes, os.cpu_count() or 1, "none")
    properties = _properties()
    return Gpu(
        name=str(properties.name),
        memory_bytes=int(properties.total_memory),
        sm_count=int(properties.multi_processor_count),
        compute_capability=f"{properties.major}.{properties.minor}",
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or None,
    )


def free_bytes(device: str) -> int:
    """Memory that can still be allocated on the device; half of the machine's for a CPU."""
    if device == "cpu":
        return describe("cpu").memory_bytes // 2
    import torch

    return int(torch.cuda.mem_get_info()[0])


def driver_version(device: str) -> str | None:
    """The NVIDIA driver's version, None where there is none or nobody tells."""
    if device == "cpu":
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # NVML is a convenience: any failure of it falls back to nvidia-smi
        return _nvidia_smi("driver_version")


def _properties() -> Any:
    import torch

    return torch.cuda.get_device_properties(torch.cuda.current_device())


def _uuid() -> str | None:
    uuid = getattr(_properties(), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _nvidia_smi(field: str) -> str | None:
    """One field of `nvidia-smi`'s query about the GPU in use."""
    uuid = _uuid()
    command = [
        "nvidia-smi",
        f"--query-gpu={field}",
        "--format=csv,noheader,nounits",
        *(["-i", uuid] if uuid else []),
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = run.stdout.split("\n")
    return lines[0].strip() or None


def _clock_reader() -> tuple[Callable[[], float], float]:
    """(a function that reads the SM clock in MHz, seconds to wait between readings)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = _uuid()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        return lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)), 0.05
    except Exception:  # as above
        return lambda: float(_nvidia_smi("clocks.sm") or NAN), 0.5


class ClockSampler:
    """Reads the SM clock in a thread of its own while the `with` block lasts; NaN where it cannot be read."""

    def __init__(self, device: str):
        self._samples: list[tuple[float, float]] = []
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
        read, pause_s = _clock_reader()
        while not self._stop.wait(pause_s):
            try:
                mhz = read()
            except Exception:  # a reading that fails is a missing reading
                mhz = NAN
            if mhz == mhz:
                self._samples.append((time.monotonic(), mhz))

    def since(self, start_s: float) -> float:
        """Median MHz since `start_s` (`time.monotonic`), the last one known if there is none; else NaN."""
        samples = self._samples[-200:]
        recent = [mhz for taken_s, mhz in samples if taken_s >= start_s]
        if recent:
            return float(median(recent))
        return samples[-1][1] if samples else NAN

    def seen(self) -> dict[str, float | None]:
        """Least, median and most MHz of the whole run."""
        clocks = [mhz for _, mhz in self._samples]
        if not clocks:
            return {"sm_min": None, "sm_median": None, "sm_max": None}
        return {"sm_min": min(clocks), "sm_median": float(median(clocks)), "sm_max": max(clocks)}


def dtype_of(device: str, name: str | None = None) -> "torch.dtype":
    """The type of that name; without one bfloat16 on a GPU, as engines run, and float32 on a CPU, which emulates it.

    InputError for float32 on a GPU: the flash-attn kernels have no such form.
    """
    import torch

    if name == "float32" and device == "cuda":
        raise InputError("float32 is for --device cpu; on a GPU use bfloat16 or float16", key="--dtype")
    default = "bfloat16" if device == "cuda" else "float32"
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name or default]
