"""Engine profiles: what an engine's host does in a step, by name or from a YAML file.

A step of `s` sequences goes through the host like this, each part linear in s: the engine *schedules* it, *prepares*
its inputs, launches its kernels, *collects* the sampled tokens, *updates* its requests; what is *between* that and the
next step (handing tokens on, taking requests in) is the last part. The GPU starts once the inputs are prepared, and it
cannot be done before the last kernel is launched. How long launching takes depends on how the step runs: as one CUDA
graph of the whole step (`full`), graphs between attention calls (`piecewise`), or kernel by kernel (`eager`). Steps run
in graphs are padded to the next captured number of tokens.

With asynchronous scheduling the host works on the next step while the GPU runs one, and its work is seen only where it
takes longer than the GPU, or where launching a step delays the tokens of the one before.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import yaml
from annotated_types import Ge, Le

from simulator.bundled import bundled_files, resolve
from simulator.errors import InputError, nearest
from simulator.files import load_yaml
from simulator.validation import parse

NONE = "none"
"""The name of the engine that adds nothing."""
Microseconds = Annotated[float, Ge(0), Le(1e9)]
Tokens = Annotated[int, Ge(1), Le(2**20)]


@dataclass(frozen=True, slots=True)
class HostTime:
    """`step_us` + `sequence_us` x sequences of the step, microseconds."""

    step_us: Microseconds = 0.0
    sequence_us: Microseconds = 0.0

    def ns(self, sequences: int) -> int:
        """Nanoseconds for a step of `sequences`."""
        return int(1000 * (self.step_us + self.sequence_us * sequences))


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to run a step: time of the host before the GPU can start, and to launch each layer from then on;
    `gpu` is GPU time that the cost table does not have (copies of inputs, sampling, gaps)."""

    prepare: HostTime = HostTime()
    layer_us: Microseconds = 0.0
    gpu: HostTime = HostTime()


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The `steps` steps of decodes alone that follow an eager step each take `step_us` longer: caches of the host are
    cold, clocks of the GPU low."""

    step_us: Microseconds = 0.0
    steps: Annotated[int, Ge(0), Le(10**6)] = 0


@dataclass(frozen=True, slots=True)
class Handing:
    """What pipeline stages hand each other through their hosts: `send_us` from launching a step until the next stage's
    host has heard of it, `tokens_us` from the end of a step on the last stage until the first one's has its tokens.
    `eager_layer_us` where launching a layer eagerly takes otherwise there than on one GPU. `fit` says where the figures
    come from."""

    send_us: Microseconds = 0.0
    tokens_us: Microseconds = 0.0
    eager_layer_us: Microseconds | None = None
    fit: str = ""


@dataclass(frozen=True, slots=True)
class Mode:
    """An engine with or without asynchronous scheduling. `fit` says where the figures come from."""

    schedule: HostTime = HostTime()
    collect_us: Microseconds = 0.0
    update: HostTime = HostTime()
    between: HostTime = HostTime()
    full: Launch = Launch()
    piecewise: Launch = Launch()
    eager: Launch = Launch()
    aftermath: Aftermath = Aftermath()
    arrival_us: Microseconds = 0.0
    """From a request's arrival at the server until the scheduler can see it."""
    delivery_us: Microseconds = 0.0
    """From the engine's having a token until the client has it."""
    pipeline: Handing = Handing()
    fit: str = ""


@dataclass(frozen=True, slots=True)
class CudaGraphs:
    """Captured numbers of tokens: `sizes`, then every so many up to a limit: `every` {8: 256, 16: 512} is every 8 up to
    256, then every 16 up to 512; none above `per_max_num_seqs` times the policy's `max_num_seqs`."""

    sizes: tuple[Tokens, ...] = ()
    every: dict[Tokens, Tokens] | None = None
    per_max_num_seqs: Annotated[int, Ge(1)] | None = None

    def captured(self, max_num_seqs: int | None) -> list[int]:
        """The captured numbers of tokens, ascending."""
        captured = list(self.sizes)
        for stride, limit in (self.every or {}).items():
            last = captured[-1] if captured else 0
            captured += range(last - last % stride + stride, limit + 1, stride)
        if self.per_max_num_seqs is None or max_num_seqs is None:
            return captured
        return [tokens for tokens in captured if tokens <= self.per_max_num_seqs * max_num_seqs]

    def __post_init__(self) -> None:
        sizes = self.captured(None)
        if sizes != sorted(set(sizes)):
            raise ValueError(f"captured sizes should ascend, not {', '.join(map(str, sizes[:20]))}")


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """A profile: both modes of an engine; `sources` for the reader."""

    name: str
    about: str
    synchronous: Mode
    asynchronous: Mode
    cuda_graphs: CudaGraphs = CudaGraphs()
    all_reduce_saves_us: Microseconds = 0.0
    """What fusing an all-reduce of tensor-parallel ranks with the norm after it saves of each; `fit` says of which."""
    fit: str = ""
    sent_tensors: Annotated[int, Ge(1)] = 1
    """Tensors of (tokens, hidden) that a pipeline stage sends to the next."""
    sources: tuple[str, ...] = ()

    def mode(self, steps_in_flight: int) -> Mode:
        """The mode of a policy with so many steps in flight."""
        return self.asynchronous if steps_in_flight > 1 else self.synchronous


def padded_tokens(captured: list[int]) -> list[int]:
    """The number of tokens that a step of each number runs with in a graph; as long as the largest captured, and 1."""
    last = captured[-1] if captured else 0
    return [0, *(captured[bisect_left(captured, tokens)] for tokens in range(1, last + 1))]


def engine_names() -> dict[str, Path]:
    """The YAML of each profile that ships."""
    return {path.stem: path for path in bundled_files("simulator", "engines", "*.yaml")}


def load_engine(name: str, beside: Path | None = None) -> EngineProfile | None:
    """The profile of that name, or in that file; None for `none`. Raises InputError with the nearest name."""
    if name == NONE:
        return None
    path = engine_names().get(name) or resolve(name, beside)
    if path is None or not path.is_file():
        hint = nearest(name, [NONE, *engine_names()], "engines")
        raise InputError(f'unknown engine profile "{name}"; {hint}, or the path of a YAML', key="engine")
    return parse(EngineProfile, load_yaml(path), path=path)


def engine_sha256(name: str) -> str:
    """That of the profile's file, as an experiment names it; empty for `none`."""
    path = engine_names().get(name) or Path(name)
    return sha256(path.read_bytes()).hexdigest() if name != NONE and path.is_file() else ""


def check_profile(keys: Mapping[str, Any]) -> None:
    """InputError where these are not the keys of a profile that can be read again."""
    parse(EngineProfile, keys)


def dump_profile(profile: Mapping[str, Any]) -> str:
    """The YAML text of a profile's keys."""
    return yaml.safe_dump(dict(profile), sort_keys=False, width=110, allow_unicode=True)
