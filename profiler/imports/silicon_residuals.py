"""How far the roofline model is from aiconfigurator-core's measurements, GPU by GPU: none of them was fitted.

    python -m profiler.imports.silicon_residuals

Matrix products with n and k from 4096 to 16384, by tokens; attention with 32 heads and 8 KV heads of 128 elements.
"""

import sys
from collections.abc import Iterable, Iterator
from statistics import median

from profiler.grid import Point
from profiler.imports.attention_model import attention_us
from profiler.imports.compare import LEAST, MOST
from profiler.imports.datasheet import Hardware, gpu_names, load_hardware
from profiler.imports.gemm import gemm_us
from profiler.imports.silicon import Silicon
from simulator.errors import InputError
from simulator.models import load_model

ENGINE = "vllm"
RANGES = ((1, 64), (65, 256), (257, 1024), (1025, 8192))
MODEL = "llama-3.1-8b"  # 32 heads, 8 KV heads


def gemm_errors(hardware: Hardware, silicon: Silicon) -> Iterator[tuple[int, float]]:
    """Tokens, and the model's time over the measured one, less 1."""
    for (n, k), times in silicon.gemm_us().items():
        if min(n, k) >= LEAST and max(n, k) <= MOST:
            yield from ((m, gemm_us(m, n, k, hardware) / time - 1) for m, time in times.items())


def attention_errors(hardware: Hardware, silicon: Silicon) -> Iterator[tuple[bool, float]]:
    """Whether it is a prefill, and the error, of calls that are not all launch: 64 tokens or entries and more."""
    shape = load_model(MODEL)
    heads = (shape.num_attention_heads, shape.num_key_value_heads)
    for (prompts, tokens), time in silicon.prefill_us(shape.head_dim)[heads].items():
        if tokens >= 64 and prompts <= 4:
            yield (
                True,
                attention_us(Point("attention", prefills=prompts, prefill_tokens=tokens), shape, hardware) / time - 1,
            )
    for (decodes, context), time in silicon.decode_us(shape.head_dim)[heads].items():
        if context >= 64 and decodes <= 1024 and context <= 32768:
            point = Point("attention", decodes=decodes, decode_context=context)
            yield False, attention_us(point, shape, hardware) / time - 1


def spread(errors: Iterable[float]) -> str:
    """'median (median absolute)' in per cent."""
    held = list(errors)
    return f"{median(held):+.0%} ({median(map(abs, held)):.0%})" if held else "-"


def report() -> str:
    """A row a GPU: median error, and in brackets the median of its size."""
    ranges = " | ".join(f"{low} to {high} tokens" for low, high in RANGES)
    lines = [f"| GPU | {ranges} | all products | prefills | decodes |", f"|{' --- |' * (len(RANGES) + 4)}"]
    for name in gpu_names():
        hardware = load_hardware(name)
        if hardware.sheet.silicon is None:
            continue
        silicon = Silicon(hardware.sheet.silicon, ENGINE)
        products, attention = list(gemm_errors(hardware, silicon)), list(attention_errors(hardware, silicon))
        cells = [spread(error for m, error in products if low <= m <= high) for low, high in RANGES]
        cells.append(spread(error for m, error in products if m <= RANGES[-1][1]))
        cells += [spread(error for prefill, error in attention if prefill is wanted) for wanted in (True, False)]
        lines.append(f"| {name}, {silicon.version('gemm_perf')} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        print(report())
    except InputError as error:
        sys.exit(f"silicon_residuals: {error}")
