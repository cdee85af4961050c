"""Facts of the device in use. Nothing here changes a setting of the GPU."""

import os
import platform
import subprocess
from typing import TYPE_CHECKING, Any

from simulator.cost_table import Gpu
from simulator.errors import InputError

if TYPE_CHECKING:
    import torch


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
        return nvidia_smi("driver_version")[0]


def _properties() -> Any:
    import torch

    return torch.cuda.get_device_properties(torch.cuda.current_device())


def uuid_of_gpu() -> str | None:
    """NVML's name of the GPU in use, None where this PyTorch does not tell."""
    uuid = getattr(_properties(), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def nvidia_smi(*fields: str) -> list[str | None]:
    """Fields of `nvidia-smi`'s query about the GPU in use; None for each where it does not answer."""
    uuid = uuid_of_gpu()
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader,nounits",
        *(["-i", uuid] if uuid else []),
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return [None] * len(fields)
    values: list[str | None] = [value.strip() or None for value in run.stdout.split("\n")[0].split(",")]
    return values if len(values) == len(fields) else [None] * len(fields)


def dtype_of(device: str, name: str | None = None) -> "torch.dtype":
    """The type of that name; without one bfloat16 on a GPU, as engines run, and float32 on a CPU, which emulates it.

    InputError for float32 on a GPU: the flash-attn kernels have no such form.
    """
    import torch

    if name == "float32" and device == "cuda":
        raise InputError("float32 is for --device cpu; on a GPU use bfloat16 or float16", key="--dtype")
    default = "bfloat16" if device == "cuda" else "float32"
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name or default]
