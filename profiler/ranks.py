"""The processes of a network measurement, one a rank: started, measured in step, and ended whatever happens.

The first rank reports to the process that started them.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from profiler.collectives import Exchange, Rank, Task, exchange_of, symmetric_buffer
from profiler.device import dtype_of
from profiler.exchange_timing import time_exchange
from profiler.network_rows import ONE_SHOT, Reading, shown

if TYPE_CHECKING:
    import torch

HOST = "127.0.0.1"
PATIENCE = timedelta(minutes=5)
QUIET = {"TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false"}
"""Sends are alone on their way here, so that they are serialized does no harm."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


class RankError(Exception):
    """A rank failed; the message is its own last line."""


@dataclass(frozen=True, slots=True)
class Group:
    """So many ranks on `cuda` or `cpu`, and whether NVLink multicast may be used."""

    ranks: int
    device: str
    multicast: bool = False

    @property
    def backend(self) -> str:
        """PyTorch's name of what they talk through."""
        return "nccl" if self.device == "cuda" else "gloo"


def measure_ranks(group: Group, tasks: Sequence[Task], report: Callable[[Reading | str], None]) -> None:
    """Measure each task; `report` gets a reading of each, or a sentence why some are left out.

    Raises RankError. On any exception, Ctrl-C included, no process is left.
    """
    import torch.distributed as dist
    import torch.multiprocessing as mp

    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    results: Any = mp.get_context("spawn").SimpleQueue()
    arguments = (group, tuple(tasks), store.port, results)
    with _ctrl_c_is_ours():
        processes: Any = mp.start_processes(  # type: ignore[no-untyped-call]
            _run_rank, arguments, group.ranks, join=False, start_method="spawn"
        )
    try:
        ended = False
        while not ended:
            ended = processes.join(timeout=0.1)
            while not results.empty():
                report(results.get())
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        raise RankError(str(error).strip().splitlines()[-1]) from None
    finally:
        for process in processes.processes:
            if process.is_alive():
                process.terminate()
            process.join()


@contextmanager
def _ctrl_c_is_ours() -> Iterator[None]:
    """Processes started meanwhile ignore it; they are ended by the one that started them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_rank(index: int, group: Group, tasks: Sequence[Task], port: int, results: Any) -> None:
    """One process."""
    import torch
    import torch.distributed as dist

    device = _own_device(index, group)
    bound = {"device_id": device} if group.device == "cuda" else {}
    dist.init_process_group(
        group.backend,
        store=dist.TCPStore(HOST, port, is_master=False),
        rank=index,
        world_size=group.ranks,
        timeout=PATIENCE,
        **bound,
    )
    with torch.no_grad():
        for result in measured(Rank(index, group.ranks, device, dtype_of(group.device)), tasks):
            if index == 0:
                results.put(result)
    dist.destroy_process_group()  # not after a failure: it would wait for the other ranks


def _own_device(index: int, group: Group) -> "torch.device":
    import torch

    if group.device == "cpu":
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name need not resolve
        return torch.device("cpu")
    os.environ.update(QUIET)
    for name, value in NO_MULTICAST.items():
        if group.multicast:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def measured(rank: Rank, tasks: Sequence[Task]) -> Iterator[Reading | str]:
    """A reading of each task; those of the one-shot kernel are left out, with a sentence, where there is none."""
    symmetric = None
    largest = max((task.size for task in tasks if task.kernel == ONE_SHOT), default=0)
    if largest:
        found = symmetric_buffer(rank, largest)
        if isinstance(found, str):
            yield f"without the one-shot kernel: {found}"
            tasks = [task for task in tasks if task.kernel != ONE_SHOT]
        else:
            symmetric = found
    for task in tasks:
        exchange = exchange_of(rank, task, symmetric)
        _require_arrived(rank, task, exchange)
        timing, calls = time_exchange(rank, exchange, task.size)
        yield Reading(task.exchange, task.kernel, exchange.ranks, task.size, timing, calls)


def _require_arrived(rank: Rank, task: Task, exchange: Exchange) -> None:
    """A time of a wrong sum is worth nothing."""
    if not rank.agree(exchange.arrived()):
        raise RuntimeError(f"{task.kernel} {task.exchange} of {shown(task.size)} brings wrong numbers")
