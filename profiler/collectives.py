"""What one rank does in each exchange that is measured: its buffers, one launch, and whether the right numbers arrive.

Buffers hold zeros while they are timed, because sums of anything else would overflow after some hundred launches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiler.network_rows import ONE_SHOT

if TYPE_CHECKING:
    import torch

SENDER, RECEIVER = 0, 1


@dataclass(frozen=True, slots=True)
class Task:
    """One exchange of `size` bytes by one kernel, as in `network_rows.Reading`."""

    exchange: str
    kernel: str
    size: int


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of `ranks`, in PyTorch's default process group; `device` is its own."""

    index: int
    ranks: int
    device: "torch.device"
    dtype: "torch.dtype"

    def numbers(self, size: int, value: int) -> "torch.Tensor":
        """`size` bytes of one number."""
        import torch

        return torch.full((size // self.dtype.itemsize,), value, device=self.device, dtype=self.dtype)

    def agree(self, here: bool) -> bool:
        """Whether it is so on every rank. All have to ask."""
        import torch
        import torch.distributed as dist

        everywhere = torch.tensor([int(here)], device=self.device)
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
        return bool(everywhere.item())


@dataclass(frozen=True, slots=True)
class Exchange:
    """A task as this rank takes part in it, among `ranks`.

    `launch` starts `messages` of them, None on a rank that looks on. `arrived` launches once and tells whether this
    rank then has the right numbers.
    """

    ranks: int
    launch: Callable[[], object] | None
    arrived: Callable[[], bool]
    messages: int = 1


def exchange_of(rank: Rank, task: Task, symmetric: "torch.Tensor | None" = None) -> Exchange:
    """The exchange of a task; `symmetric`, of at least its size, is the buffer of the one-shot kernel."""
    if task.kernel == ONE_SHOT:
        assert symmetric is not None
        return one_shot(rank, symmetric[: task.size // rank.dtype.itemsize])
    return {"all_reduce": all_reduce, "all_gather": all_gather, "send": send}[task.exchange](rank, task.size)


def all_reduce(rank: Rank, size: int) -> Exchange:
    """A sum over ranks, in place."""
    import torch.distributed as dist

    numbers = rank.numbers(size, 0)

    def arrived() -> bool:
        numbers.fill_(rank.index + 1)
        dist.all_reduce(numbers)
        right = bool((numbers == _sum(rank)).all())
        numbers.zero_()
        return right

    return Exchange(rank.ranks, lambda: dist.all_reduce(numbers), arrived)


def one_shot(rank: Rank, numbers: "torch.Tensor") -> Exchange:
    """A sum over ranks into a new tensor: each rank reads the `numbers` of all, which lie in symmetric memory."""
    import torch
    import torch.distributed as dist

    assert dist.group.WORLD is not None
    group = dist.group.WORLD.group_name

    def launch() -> Any:
        return torch.ops.symm_mem.one_shot_all_reduce(numbers, "sum", group)

    def arrived() -> bool:
        numbers.fill_(rank.index + 1)
        right = bool((launch() == _sum(rank)).all())
        torch.cuda.synchronize()
        dist.barrier()  # another rank may still be reading
        numbers.zero_()
        return right

    return Exchange(rank.ranks, launch, arrived)


def _sum(rank: Rank) -> int:
    """Of what ranks start with in `arrived`."""
    return rank.ranks * (rank.ranks + 1) // 2


def all_gather(rank: Rank, size: int) -> Exchange:
    """Afterwards each rank has the pieces of all, `size` bytes, a multiple of the ranks' number."""
    import torch.distributed as dist

    piece, gathered = rank.numbers(size // rank.ranks, 0), rank.numbers(size, 0)
    # PyTorch 2.13 has a new name for it, and warns of the old one
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def launch() -> None:
        gather(gathered, piece)

    def arrived() -> bool:
        piece.fill_(rank.index + 1)
        launch()
        pieces = gathered.view(rank.ranks, -1)
        right = all(bool((pieces[other] == other + 1).all()) for other in range(rank.ranks))
        piece.zero_()
        return right

    return Exchange(rank.ranks, launch, arrived)


def send(rank: Rank, size: int) -> Exchange:
    """Back and forth between the first two ranks; a message is half of that."""
    import torch.distributed as dist

    numbers = rank.numbers(size, 0)

    def there_and_back() -> None:
        if rank.index == SENDER:
            dist.send(numbers, RECEIVER)
            dist.recv(numbers, RECEIVER)
        else:
            dist.recv(numbers, SENDER)
            dist.send(numbers, SENDER)

    def arrived() -> bool:
        numbers.fill_(rank.index + 1)
        there_and_back()
        right = bool((numbers == SENDER + 1).all())
        numbers.zero_()
        return right

    if rank.index > RECEIVER:
        return Exchange(2, None, lambda: True, messages=2)
    return Exchange(2, there_and_back, arrived, messages=2)


def symmetric_buffer(rank: Rank, size: int) -> "torch.Tensor | str":
    """A buffer of `size` bytes that every rank can read, or why there is none; the same on all ranks."""
    import torch
    import torch.distributed as dist

    peers = [peer for peer in range(rank.ranks) if peer != rank.index]
    if not rank.agree(all(torch.cuda.can_device_access_peer(rank.index, peer) for peer in peers)):
        return "a GPU cannot read the memory of another"
    buffer, why = None, "another rank has none"
    try:
        import torch.distributed._symmetric_memory as symmetric_memory

        _ = torch.ops.symm_mem.one_shot_all_reduce
        assert dist.group.WORLD is not None
        buffer = symmetric_memory.empty(size // rank.dtype.itemsize, dtype=rank.dtype, device=rank.device)
        symmetric_memory.rendezvous(buffer, dist.group.WORLD.group_name)
    except (ImportError, AttributeError, RuntimeError) as error:  # an older PyTorch, or a driver that refuses
        why, buffer = " ".join(str(error).split())[:200], None
    if not rank.agree(buffer is not None):
        return why
    assert buffer is not None
    return buffer.zero_()
