"""A model of a matrix product's time: tiles of the output, dealt in waves to the multiprocessors.

The product of (m, k) and (k, n) is cut into tiles of the output, and where that leaves multiprocessors idle also
along k. All multiprocessors work on one tile at a time, so the computing time is a whole number of waves: one row more
than a tile can begin a new wave. A small tile reads more for what it computes and reaches less of the peak. Of all
tilings the fastest counts, as a library's heuristics aim for. Memory traffic, every operand once, overlaps with
computing, and a launch costs a constant.
"""

import numpy as np

from profiler.imports.datasheet import Hardware

TILES = np.array([
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (32, 128), (32, 64),
    (16, 128), (16, 64),
])  # fmt: skip
SPLITS = np.array([1, 2, 3, 4, 6, 8])
LEAST_SPLIT_K = 512
ELEMENT_BYTES = 2
PARTIAL_BYTES = 8  # a split's partial sum in 32 bits, written and read again

_ROWS, _COLUMNS, _SPLITS = (
    np.repeat(TILES[:, 0], len(SPLITS)),
    np.repeat(TILES[:, 1], len(SPLITS)),
    np.tile(SPLITS, len(TILES)),
)
_INTENSITY = _ROWS * _COLUMNS / (_ROWS + _COLUMNS)


def gemm_us(m: int, n: int, k: int, hardware: Hardware) -> float:
    """Microseconds of the product of (m, k) and (k, n) in 16 bits."""
    constants, sheet, count = hardware.constants.gemm, hardware.sheet, hardware.gpu.sm_count
    tiles = -(-m // _ROWS) * -(-n // _COLUMNS) * _SPLITS
    rate = sheet.peak_flops / count * _INTENSITY / (_INTENSITY + constants.half_intensity)
    computing = -(-tiles // count) * 2 * _ROWS * _COLUMNS * (k / _SPLITS) / rate
    traffic = ELEMENT_BYTES * (m * n + m * k + n * k) + np.where(_SPLITS > 1, PARTIAL_BYTES * m * n * _SPLITS, 0)
    memory = traffic / (sheet.memory_bandwidth * constants.memory_share)
    seconds = overlapped(computing, memory, constants.overlap)
    allowed = (_SPLITS == 1) | (k // _SPLITS >= LEAST_SPLIT_K)
    return float(np.min(seconds[allowed])) * 1e6 + constants.launch_us


def overlapped(
    computing: "np.typing.NDArray[np.float64]", memory: "np.typing.NDArray[np.float64]", p: float
) -> "np.typing.NDArray[np.float64]":
    """What both take together: their sum at exponent 1, the longer of them as it grows."""
    return np.asarray((computing**p + memory**p) ** (1 / p))
