"""What a run of `profile-network` needs before it measures: options, ranks and sizes, and what the machine tells."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from profiler import device as machine
from profiler.collectives import Task
from profiler.network_rows import GLOO, NCCL, ONE_SHOT
from profiler.ranks import Group
from simulator.errors import InputError
from simulator.network import Measurement

ONE_SHOT_BYTES = 2**24
DEFAULT_SIZES = {
    "cuda": tuple(2**power for power in range(13, 29)),
    "cpu": tuple(2**power for power in range(13, 21)),
}
PACKET = 16
"""Bytes that the one-shot kernel moves at a time."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `profile-network`; sizes in bytes."""

    out: Path
    ranks: int | None = None
    device: str = "cuda"
    sizes: tuple[int, ...] | None = None
    name: str | None = None
    multicast: bool = False
    force: bool = False
    quiet: bool = False

    @property
    def readings(self) -> Path:
        """The CSV beside the YAML."""
        return self.out.with_suffix(".csv")

    def command(self, group: Group) -> str:
        """The command that repeats the measurement; files by name only."""
        words = ["profile-network", "--device", self.device, "--ranks", str(group.ranks)]
        words += ["--sizes", ",".join(map(str, self.sizes))] if self.sizes else []
        words += ["--name", self.name] if self.name else []
        words += ["--multicast"] if self.multicast else []
        return shlex.join([*words, "--out", self.out.name])


def require_writable(options: Options) -> None:
    """Raise InputError where the network or its readings cannot be written, or would overwrite what nobody gave up."""
    out = options.out
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f'a network is a .yaml file, not "{out.name}"', key="--out")
    for path in (out, options.readings):
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file", key="--out")
        if path.exists() and not options.force:
            raise InputError(f"{path} exists; --force overwrites it", key="--out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = out.with_name(f"{out.name}.partial")  # a place that cannot be written to is better known before
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}", key="--out") from None


def group_of(options: Options) -> Group:
    """The ranks to measure: all GPUs unless fewer are asked for; on a CPU two. InputError where they are not there."""
    machine.require_torch("cpu", "profile-network")
    import torch
    import torch.distributed as dist

    if options.device == "cpu":
        if not (dist.is_available() and dist.is_gloo_available()):
            raise InputError("this PyTorch has no gloo, through which ranks on a CPU talk", key="--device")
        return Group(options.ranks or 2, "cpu")
    gpus = torch.cuda.device_count()
    if gpus < 2:
        raise InputError(
            f"an exchange takes two GPUs; PyTorch {torch.__version__} sees {gpus}. Networks that ship need none"
            " (simulate-trace --list networks); `--device cpu` only tries the program"
        )
    if options.ranks is not None and options.ranks > gpus:
        raise InputError(f"PyTorch sees {gpus} GPUs, so {gpus} ranks at most", key="--ranks")
    if not dist.is_nccl_available():
        raise InputError("this PyTorch has no NCCL, through which GPUs talk", key="--device")
    return Group(options.ranks or gpus, "cuda", options.multicast)


def tasks_of(sizes: Sequence[int], group: Group) -> list[Task]:
    """What is measured, sizes ascending; an all-gather's are rounded up to whole packets of each rank.

    Raises InputError for a size that is no multiple of 16 bytes.
    """
    for size in sizes:
        if size % PACKET:
            nearest = max(round(size / PACKET), 1) * PACKET
            raise InputError(f"{size} bytes is no multiple of {PACKET}; the nearest is {nearest}", key="--sizes")
    kernel, tasks = NCCL if group.device == "cuda" else GLOO, set()
    for size in sizes:
        unit = PACKET * group.ranks
        tasks |= {Task("all_reduce", kernel, size), Task("send", kernel, size)}
        tasks.add(Task("all_gather", kernel, -(-size // unit) * unit))
        if group.device == "cuda" and size <= ONE_SHOT_BYTES:
            tasks.add(Task("all_reduce", ONE_SHOT, size))
    return sorted(tasks, key=lambda task: (task.size, task.exchange, task.kernel))


def measurement_of(options: Options, group: Group, notes: Sequence[str], sm_mhz: float | None) -> Measurement:
    """What the YAML says of machine, versions and date."""
    import torch

    on_gpu = group.device == "cuda"
    names = [torch.cuda.get_device_name(index) for index in range(group.ranks)] if on_gpu else []
    return Measurement(
        gpu=", ".join(dict.fromkeys(names)) or machine.describe("cpu").name,
        ranks=group.ranks,
        dtype=str(machine.dtype_of(group.device)).removeprefix("torch."),
        torch=str(torch.__version__),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=options.command(group),
        readings=options.readings.name,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,  # type: ignore[no-untyped-call]
        cuda=torch.version.cuda,
        driver=machine.driver_version(group.device),
        nvlink_multicast=("as NCCL chooses" if group.multicast else "not used") if on_gpu else None,
        sm_mhz=sm_mhz,
        notes=tuple(notes),
    )
