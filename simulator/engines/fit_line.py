"""What the fits of both modes share: the logs to fit to, and a robust line over the sequences of a step."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engines.logged import KINDS, PricedLog
from simulator.engines.profile import HostTime, Launch, Mode
from simulator.regression import least_squares
from simulator.trace import Floats, Ints

FEWEST = 20
"""Steps of a kind below which its times are not fitted."""
FEWEST_BOUND = 5
"""Launch-bound steps below which launch times are not fitted."""
LOSS_SCALE = 0.15
"""Relative error of a step from which it counts less."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class FitLog:
    """A log to fit to: its steps priced, the model's layers, and which steps are used."""

    priced: PricedLog
    layers: int
    used: Mask


def told_line(name: str, sequences: Ints, seconds: Floats, start: HostTime, missing: list[str]) -> HostTime:
    """`robust_line` of as much of it as the values tell; the rest is that of `start`, and said."""
    if len(seconds) < FEWEST:
        missing.append(f"{name}: {len(seconds)} steps, too few to fit; kept as it was")
        return start
    if np.ptp(sequences):
        return robust_line(sequences, seconds)
    missing.append(f"{name}.sequence_us: all steps have {sequences[0]} sequences; kept as it was")
    rest = seconds - 1e-6 * start.sequence_us * sequences
    return HostTime(round(max(float(np.median(rest)) * 1e6, 0.0), 2), start.sequence_us)


def robust_line(sequences: Ints, seconds: Floats) -> HostTime:
    """`seconds` as a line over `sequences`, neither part below 0; all 0 without values."""
    if not len(seconds):
        return HostTime()
    microseconds = seconds * 1e6
    scale = float(np.median(np.abs(microseconds))) or 1.0

    def errors(line: Floats) -> Floats:
        return np.asarray((line[0] + line[1] * sequences - microseconds) / scale)

    found = least_squares(errors, [scale / 2, scale / 100], bounds=(0, np.inf), loss="soft_l1", f_scale=1.0)
    return HostTime(*(round(float(value), 2) for value in found.x))


def with_way(mode: Mode, way: int, launch: Launch) -> Mode:
    """`mode` with another launch of one of KINDS."""
    changed: dict[str, Any] = {KINDS[way]: launch}
    return replace(mode, **changed)
