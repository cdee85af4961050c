"""The fit of an engine without steps in flight: prepare and launch times of all ways to run a step at once."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engines.fit_line import FEWEST, FEWEST_BOUND, LOSS_SCALE, FitLog, Mask, with_way
from simulator.engines.logged import EAGER, FULL, KINDS, PIECEWISE, aftermath_of, launches
from simulator.engines.profile import Aftermath, HostTime, Launch, Mode
from simulator.regression import least_squares
from simulator.trace import Floats, Ints

AFTERMATHS = (5, 10, 20, 40)
"""For how many steps an eager one may make those after it slower."""


def fit_alone(logs: Sequence[FitLog], start: Mode, missing: list[str]) -> Mode:
    """Prepare and launch times of all ways at once; time by sequences is shared by them."""
    ways = [way for way in (FULL, PIECEWISE, EAGER) if _count(logs, way) >= FEWEST]
    missing += [
        f"{KINDS[way]}: {_count(logs, way)} steps, too few to fit; kept as it was"
        for way in (FULL, PIECEWISE, EAGER)
        if way not in ways
    ]
    if not ways:
        return start
    steps = _gather_alone(logs, ways)
    each_told, after_told = bool(np.ptp(steps.sequences)), _tells_aftermath(logs)
    kept_each = 1e-6 * start.full.prepare.sequence_us
    if not each_told:
        missing.append(f"prepare.sequence_us: all steps have {steps.sequences[0]} sequences; kept as it was")
    if not after_told:
        missing.append("aftermath: too few steps of decodes alone follow an eager one; kept as it was")
    at_once = np.array([way == FULL for way in ways])

    def errors(figures: Floats, aftermath: Mask) -> Floats:
        prepare = figures[: len(ways)]
        each = figures[-2] if each_told else kept_each
        after = figures[-1] if after_told else 1e-6 * start.aftermath.step_us
        launch = np.where(at_once, 0.0, figures[len(ways) : -2])
        host = prepare[steps.place] + each * steps.sequences
        predicted = host + np.maximum(steps.gpu_s + after * aftermath, launch[steps.place] * steps.layers)
        return np.asarray(predicted / steps.measured_s - 1)

    # From above: launches that are shorter than all GPU times would leave no slope to follow.
    layer_s = steps.measured_s / steps.layers
    least = [float(np.quantile(layer_s[steps.place == index], 0.2)) for index in range(len(ways))]
    begin = [1e-3] * len(ways) + least + [1e-5, 1e-4]
    best: Any = None
    for length in AFTERMATHS if after_told else (start.aftermath.steps,):
        aftermath = np.concatenate([aftermath_of(log.priced, length)[_wanted(log, ways)] for log in logs])
        tried = least_squares(
            errors, begin, bounds=(0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE, x_scale=begin, args=(aftermath,)
        )
        if best is None or tried.cost < best[0]:
            best = tried.cost, tried.x, length
    _, found, length = best
    mode = replace(start, collect_us=0.0)
    if after_told:
        mode = replace(mode, aftermath=Aftermath(round(float(found[-1]) * 1e6, 2), length))
    each_us = round(1e6 * (float(found[-2]) if each_told else kept_each), 2)
    for index, way in enumerate(ways):
        layer_us = _told_launch(way, float(found[len(ways) + index]), steps.of_way(index), start, missing)
        mode = with_way(mode, way, Launch(HostTime(round(float(found[index]) * 1e6, 2), each_us), layer_us))
    return mode


def _told_launch(way: int, layer_s: float, steps: "_Alone", start: Mode, missing: list[str]) -> float:
    """Microseconds a layer, where enough steps wait for their launch; a graph is launched at once."""
    if way == FULL:
        return 0.0
    bound = int((steps.gpu_s < layer_s * steps.layers).sum())
    if bound >= FEWEST_BOUND:
        return round(layer_s * 1e6, 2)
    missing.append(f"{KINDS[way]}.layer_us: {bound} launch-bound steps, too few to fit; kept as it was")
    return launches(start)[way].layer_us


@dataclass(frozen=True)
class _Alone:
    """The steps to fit to: seconds measured and of the GPU, sequences, index of the way to run, layers."""

    measured_s: Floats
    gpu_s: Floats
    sequences: Ints
    place: Ints
    layers: Ints

    def of_way(self, index: int) -> "_Alone":
        here = self.place == index
        return _Alone(*(column[here] for column in astuple(self)))


def _gather_alone(logs: Sequence[FitLog], ways: Sequence[int]) -> _Alone:
    columns: list[tuple[NDArray[Any], ...]] = []
    for log in logs:
        wanted = _wanted(log, ways)
        place = np.searchsorted(ways, log.priced.kind[wanted])
        measured = _alone_s(log)[wanted]
        layers = np.full(len(place), log.layers)
        columns.append((measured, log.priced.gpu_s[wanted], log.priced.sequences[wanted], place, layers))
    return _Alone(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def _alone_s(log: FitLog) -> Floats:
    return log.priced.log.output_ready_s - log.priced.log.schedule_end_s


def _wanted(log: FitLog, ways: Sequence[int]) -> Mask:
    return np.asarray(log.used & np.isin(log.priced.kind, ways) & (_alone_s(log) > 0))


def _tells_aftermath(logs: Sequence[FitLog]) -> bool:
    return sum(int((log.used & aftermath_of(log.priced, AFTERMATHS[0])).sum()) for log in logs) >= FEWEST


def _count(logs: Sequence[FitLog], way: int) -> int:
    return sum(int(_wanted(log, [way]).sum()) for log in logs)
