"""Fits the few constants of the roofline model to the published times that are marked `fitted`.

    python -m profiler.imports.calibrate

writes `constants.yaml`. Each constant in turn is changed by a factor as long as that lowers the mean absolute error of
the logarithms, with smaller and smaller factors: deterministic, some tens of seconds. What is not fitted (the share of
peak FLOP/s that FlashAttention-2 reaches, and generations without published times) says so in its `basis`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import log
from typing import Any, TypeVar

import yaml

from profiler.imports.datasheet import (
    CONSTANTS,
    AttentionConstants,
    Constants,
    GemmConstants,
    Hardware,
    load_hardware,
)
from profiler.imports.published import Series, published

Chosen = TypeVar("Chosen", GemmConstants, AttentionConstants, Constants)

FIRST_GEMM = GemmConstants(half_intensity=20.0, memory_share=0.8, launch_us=3.0, overlap=3.0)
FA2 = AttentionConstants("flash-attn", 64, False, False, 0.62, 0.8, 8.0, 2.0)
FA3 = AttentionConstants("vllm-flash-attn", 128, True, True, 0.6, 0.8, 8.0, 3.0)
BOUNDS = {"memory_share": (0.3, 1.0), "flops_share": (0.1, 1.0), "overlap": (1.0, 12.0), "launch_us": (0.5, 20.0)}
FACTORS = (1.3, 1.1, 1.03, 1.01)

HEADER = "# Written by `python -m profiler.imports.calibrate`; see profiler/imports/datasheet.py for what each means.\n"


def fit(first: Chosen, names: Sequence[str], loss: Callable[[Chosen], float]) -> Chosen:
    """The constants with `names` changed so that `loss` is least, by steps that shrink."""
    best, least = first, loss(first)
    for factor in FACTORS:
        improved = True
        while improved:
            improved = False
            for name in names:
                for step in (factor, 1 / factor):
                    low, high = BOUNDS.get(name, (0.01, 1000.0))
                    tried = _changed(best, {name: min(max(getattr(best, name) * step, low), high)})
                    loss_here = loss(tried)
                    if loss_here < least - 1e-9:
                        best, least, improved = tried, loss_here, True
    return _changed(best, {name: float(f"{getattr(best, name):.3g}") for name in names})


def _changed(constants: Chosen, values: dict[str, Any]) -> Chosen:
    return replace(constants, **values)


def mean_error(series: Sequence[Series], hardware: Mapping[str, Hardware]) -> float:
    """Mean absolute error of the logarithm, every series counting the same."""
    return sum(_mean_error(one, hardware[one.gpu]) for one in series) / len(series)


def _mean_error(series: Series, hardware: Hardware) -> float:
    return sum(abs(log(1 + error)) for error in series.errors(hardware)) / len(series.points)


def fitted(gpus: Sequence[str], operator: str) -> list[Series]:
    """The series of these GPUs that the fit may see."""
    shown = [one for one in published() if one.gpu in gpus and one.role == "fitted"]
    return [one for one in shown if one.points[0][0].operator == operator]


def calibrate() -> dict[str, Constants]:
    """Constants of all generations."""
    start = Constants("", FIRST_GEMM, FA3, 15.0, 0.8)
    hopper = _fit_all(["h100", "h200"], start)
    ampere = _fit_all(["a100-80"], replace(hopper, attention=FA2))
    ga102 = _fit_all(["a40"], ampere)
    return {
        "ampere": replace(ampere, basis=BASIS["ampere"]),
        "ga102": replace(ga102, basis=BASIS["ga102"]),
        "ada": replace(ga102, basis=BASIS["ada"]),
        "hopper": replace(hopper, basis=BASIS["hopper"]),
        "blackwell": replace(hopper, basis=BASIS["blackwell"]),
    }


BASIS = {
    "ampere": "matrix products: A100, Llama-2-7B; decode attention: A100, Vidur; FlashAttention-2's share of the peak"
    " in prefills: 0.62, the middle of the 50 to 73 % of its paper's abstract; elementwise work: Hopper's",
    "ga102": "matrix products: A40, Llama-2-7B; attention: Ampere's; elementwise work: Hopper's",
    "ada": "not fitted: GA102's",
    "hopper": "matrix products: H100, Llama-2-7B, and H200, llama-3.1-8b; attention (FlashAttention-3) and elementwise"
    " work: H200, llama-3.1-8b",
    "blackwell": "not fitted: Hopper's",
}


def _fit_all(gpus: Sequence[str], start: Constants) -> Constants:
    """Fit what these GPUs have published times of, from `start`; the rest stays."""
    constants, bare = start, {gpu: load_hardware(gpu) for gpu in gpus}

    def loss_of(operator: str) -> Callable[[Constants], float]:
        series = fitted(gpus, operator)
        return lambda tried: mean_error(series, {gpu: replace(bare[gpu], constants=tried) for gpu in gpus})

    if fitted(gpus, "linear"):
        loss = loss_of("linear")
        gemm = fit(constants.gemm, list(GemmConstants.__dataclass_fields__), lambda g: loss(replace(start, gemm=g)))
        constants = replace(constants, gemm=gemm)
    if fitted(gpus, "attention"):
        loss_attention = loss_of("attention")
        names = ["memory_share", "launch_us", "tile_us"]
        if any(point.prefills for one in fitted(gpus, "attention") for point, _ in one.points):
            names.append("flops_share")
        attention = fit(start.attention, names, lambda a: loss_attention(replace(start, attention=a)))
        constants = replace(constants, attention=attention)
    if fitted(gpus, "elementwise"):
        loss_elementwise = loss_of("elementwise")
        constants = fit(constants, ["elementwise_us", "elementwise_memory_share"], loss_elementwise)
    return constants


def main() -> None:
    """Write `constants.yaml`."""
    raw: dict[str, Any] = {name: asdict(constants) for name, constants in calibrate().items()}
    CONSTANTS.write_text(HEADER + yaml.safe_dump(raw, sort_keys=False, width=110), encoding="utf-8")
    print(f"wrote {CONSTANTS.name}")


if __name__ == "__main__":
    main()
