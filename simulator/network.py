"""What ranks exchange: all-reduces of tensor parallelism, activations sent between pipeline stages.

A network is named (`h200-nvlink`) or in a YAML file. It has measured times by size of message, for so many ranks, or
facts of a link: the time of an exchange is then latency x rounds + bytes moved / bandwidth, with rounds and bytes of a
ring (Patarasuk and Yuan, 2009): an all-reduce of b bytes among n ranks takes 2 (n - 1) rounds and moves 2 (n - 1) / n
of b, an all-gather half of both, a send one round and b. Between measured sizes times are linear in bytes, below the
smallest constant, beyond the largest at the last slope.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from simulator.bundled import bundled_files, resolve
from simulator.errors import InputError, nearest
from simulator.files import load_yaml
from simulator.validation import parse

Point = tuple[Annotated[int, Ge(1)], Annotated[float, Gt(0)]]
"""(bytes of the message, microseconds)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of one exchange among `ranks`. The bytes of an all-gather are those of what each rank has afterwards."""

    ranks: Annotated[int, Ge(2)]
    points: tuple[Point, ...]
    how: str = ""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError("sizes should ascend, and there should be at least one")

    def us(self, size: int) -> float:
        """Microseconds for a message of `size` bytes."""
        points = self.points
        place = bisect_left(points, (size, 0.0))
        if place == 0:
            return points[0][1]
        if place == len(points):
            if place == 1:
                return points[0][1] * size / points[0][0]
            place -= 1
        (low, low_us), (high, high_us) = points[place - 1], points[place]
        slope = (high_us - low_us) / (high - low)
        if size > high:  # a larger message is not faster, whatever noise says
            return high_us + (size - high) * max(slope, 0.0)
        return low_us + (size - low) * slope


@dataclass(frozen=True, slots=True)
class Link:
    """A link by its facts: latency of one round, and bytes a second in one direction of one rank."""

    latency_us: Annotated[float, Ge(0)]
    gigabytes_per_s: Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """On what, with which versions and when `profile-network` measured; `readings` is its CSV of all kernels."""

    gpu: str
    ranks: Annotated[int, Ge(2)]
    dtype: str
    torch: str
    date: str
    command: str
    readings: str
    nccl: str | None = None
    cuda: str | None = None
    driver: str | None = None
    nvlink_multicast: str | None = None
    sm_mhz: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """A network: measured exchanges, facts of the link for those that were not, or both."""

    name: str
    about: str
    link: Link | None = None
    all_reduce: tuple[Measured, ...] = ()
    all_gather: tuple[Measured, ...] = ()
    send: tuple[Measured, ...] = ()
    default_for: tuple[str, ...] = ()
    """Names of GPUs whose tensor-parallel ranks and pipeline stages are joined so unless something else is said."""
    sources: tuple[str, ...] = ()
    measurement: Measurement | None = None
    source: str = ""
    """Where it was read: the bundled name, or the absolute path of a file."""

    def all_reduce_us(self, size: int, ranks: int) -> float:
        """Microseconds of an all-reduce of `size` bytes; 0 for one rank."""
        return self._us("all_reduce", size, ranks, 2 * (ranks - 1), 2 * (ranks - 1) / ranks)

    def all_gather_us(self, size: int, ranks: int) -> float:
        """Microseconds of an all-gather after which each rank has `size` bytes; 0 for one rank."""
        return self._us("all_gather", size, ranks, ranks - 1, (ranks - 1) / ranks)

    def send_us(self, size: int) -> float:
        """Microseconds from the start of a send of `size` bytes to its end at the receiver."""
        return self._us("send", size, 2, 1, 1.0)

    def _us(self, exchange: str, size: int, ranks: int, rounds: int, share: float) -> float:
        if ranks == 1 or not size:
            return 0.0
        of_exchange: tuple[Measured, ...] = getattr(self, exchange)
        for measured in of_exchange:
            if measured.ranks == ranks:
                return measured.us(size)
        if self.link is None:
            known = ", ".join(str(measured.ranks) for measured in of_exchange) or "no number"
            raise InputError(
                f"network {self.name} has {exchange} of {known} of ranks, not of {ranks}, and no facts of its link",
                key="network",
            )
        return self.link.latency_us * rounds + size * share / self.link.gigabytes_per_s / 1e3


def network_names() -> dict[str, Path]:
    """The YAML of each network that ships."""
    return {path.stem: path for path in bundled_files("simulator", "networks", "*.yaml")}


def load_network(name: str, beside: Path | None = None, key: str = "network") -> Network:
    """The network of that name, or in that file. Raises InputError with the nearest name."""
    path = network_names().get(name) or resolve(name, beside)
    if path is None or not path.is_file():
        raise InputError(
            f'unknown network "{name}"; {nearest(name, network_names(), "networks")}, or the path of a YAML',
            key=key,
        )
    return parse_network(path)


def parse_network(path: Path) -> Network:
    """The network in a YAML file. Raises InputError with file and key."""
    bundled = network_names().get(path.stem) == path
    return replace(parse(Network, load_yaml(path), path=path), source=path.stem if bundled else str(path.resolve()))


def network_of(name: str | None, gpu_name: str, beside: Path | None = None, key: str = "network") -> Network | None:
    """The network named, or else the usual one of the GPU; None where that is not known. Raises InputError."""
    return default_network(gpu_name) if name is None else load_network(name, beside, key)


def default_network(gpu_name: str) -> Network | None:
    """The network that joins GPUs of that name where nothing is said; None if none is known."""
    for path in network_names().values():
        network = parse_network(path)
        if gpu_name in network.default_for:
            return network
    return None
