"""What a GPU's datasheet says, and the constants of the roofline model of its generation.

The facts lie in `profiler/gpus/NAME.yaml` beside those of `simulator.cost_table.Gpu`, with links to where NVIDIA states
them. The constants lie in `constants.yaml`, which `python -m profiler.imports.calibrate` writes.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from annotated_types import Ge, Gt, Le

from simulator.bundled import bundled_files
from simulator.cost_table import Gpu, load_gpu
from simulator.errors import InputError, nearest
from simulator.validation import parse

CONSTANTS = Path(__file__).with_name("constants.yaml")
Share = Annotated[float, Gt(0), Le(1)]
Microseconds = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Of matrix products, see `profiler.imports.gemm`.

    `half_intensity` in FLOP a byte: the intensity at which a tile reaches half of the peak; `memory_share` of the
    datasheet's bandwidth; `overlap`: the exponent with which computing and memory traffic add up.
    """

    half_intensity: Annotated[float, Gt(0)]
    memory_share: Share
    launch_us: Microseconds
    overlap: Annotated[float, Ge(1)]


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Of one attention kernel, see `profiler.imports.attention_model`.

    `query_rows` of a tile; `packs_heads`: whether query heads that share a KV head share tiles in a prefill;
    `splits_prefill`: whether a lone chunk's context is split over idle multiprocessors.
    """

    kernel: str
    query_rows: Annotated[int, Ge(1)]
    packs_heads: bool
    splits_prefill: bool
    flops_share: Share
    memory_share: Share
    launch_us: Microseconds
    tile_us: Microseconds


@dataclass(frozen=True, slots=True)
class Constants:
    """What the model of a GPU generation was fitted to (`basis`), and what came out."""

    basis: str
    gemm: GemmConstants
    attention: AttentionConstants
    elementwise_us: Microseconds
    elementwise_memory_share: Share


@dataclass(frozen=True, slots=True)
class Datasheet:
    """Peak dense 16-bit FLOP/s and memory bandwidth (bytes/s) of a GPU, and where they are stated.

    `silicon` is its folder in aiconfigurator-core, `constants` its entry in `constants.yaml`.
    """

    peak_flops: Annotated[float, Gt(0)]
    memory_bandwidth: Annotated[float, Gt(0)]
    constants: str
    sources: tuple[str, ...]
    silicon: str | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """A GPU with its datasheet and the constants of its generation.

    `flops_share`: the share of the datasheet's FLOP/s that `sheet.peak_flops` was lowered to, for what-if tables.
    """

    gpu: Gpu
    sheet: Datasheet
    constants: Constants
    flops_share: Share = 1.0

    def lowered(self, flops_share: float) -> "Hardware":
        """The same GPU with that share of its peak FLOP/s, and all of its memory bandwidth."""
        sheet = replace(self.sheet, peak_flops=self.sheet.peak_flops * flops_share)
        return replace(self, sheet=sheet, flops_share=self.flops_share * flops_share)


def gpu_names() -> list[str]:
    """Names accepted by `load_hardware`."""
    return sorted(path.stem for path in bundled_files("profiler", "gpus", "*.yaml"))


def load_hardware(name: str) -> Hardware:
    """The GPU of that name. Raises InputError with the nearest name."""
    if name not in gpu_names():
        raise InputError(f'unknown GPU "{name}"; {nearest(name, gpu_names(), "GPUs")}', key="--gpu")
    path = next(path for path in bundled_files("profiler", "gpus", "*.yaml") if path.stem == name)
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))["datasheet"]
    sheet = parse(Datasheet, raw, path=path, prefix="datasheet.")
    return Hardware(load_gpu(name), sheet, load_constants()[sheet.constants])


@cache
def load_constants(path: Path = CONSTANTS) -> dict[str, Constants]:
    """The fitted constants by GPU generation."""
    raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: parse(Constants, entry, path=path, prefix=f"{name}.") for name, entry in raw.items()}
