"""An engine's host times from step logs, by robust regression (soft-L1 loss: a step that the operating system held up
counts little).

| time | seen in a log without steps in flight | and with them |
| --- | --- | --- |
| schedule, update | their own columns | the same |
| between | from an update to the next schedule, of an engine at work | from the update before the last |
| prepare + collect, by way of launch | output ready - scheduled, less the GPU's price; only the sum | not seen |
| launch | steps too small for the GPU to be the slower one | outputs that wait for a launch; prepare + launch |
| GPU time beyond the table | not seen (in prepare) | from output to output of GPU-bound steps, less the price |

What a log does not tell is taken from a profile given as a start, and said.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simulator.engines.logged import EAGER, EMPTY, FULL, KINDS, PIECEWISE, PricedLog, aftermath_of, host_s, launches
from simulator.engines.profile import Aftermath, HostTime, Launch, Mode
from simulator.trace import Floats, Ints

FEWEST = 20
"""Steps of a kind below which its times are not fitted."""
FEWEST_BOUND = 5
"""Launch-bound steps below which launch times are not fitted."""
AFTERMATHS = (5, 10, 20, 40)
"""For how many steps an eager one may make those after it slower."""
LOSS_SCALE = 0.15
"""Relative error of a step from which it counts less."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class FitLog:
    """A log to fit to: its steps priced, the model's layers, and which steps are used."""

    priced: PricedLog
    layers: int
    used: Mask


@dataclass(frozen=True)
class Fitted:
    """A mode, and a sentence for each part that the logs did not tell."""

    mode: Mode
    unidentified: tuple[str, ...]


def fit_mode(logs: Sequence[FitLog], start: Mode) -> Fitted:
    """The host times of `logs`, all of engines with steps in flight or all of engines without."""
    missing: list[str] = []
    schedule = _fit_line(logs, lambda log: log.priced.log.schedule_end_s - log.priced.log.schedule_start_s)
    update = _fit_line(logs, lambda log: log.priced.log.update_end_s - log.priced.log.output_ready_s)
    between = _fit_line(logs, _between)
    common = replace(start, schedule=schedule, update=update, between=between)
    fit_rest = _fit_in_flight if logs[0].priced.pipelined else _fit_alone
    return Fitted(fit_rest(logs, common, missing), tuple(missing))


def _fit_line(logs: Sequence[FitLog], seconds: Callable[[FitLog], Floats]) -> HostTime:
    """Seconds by sequences, of steps that run something."""
    sequences, times = [], []
    for log in logs:
        values = seconds(log)
        wanted = log.used & (log.priced.kind != EMPTY) & np.isfinite(values)
        sequences.append(log.priced.sequences[wanted])
        times.append(values[wanted])
    return robust_line(np.concatenate(sequences), np.concatenate(times))


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


def _between(log: FitLog) -> Floats:
    """Seconds from the update after which a step could be scheduled to its schedule; NaN where the engine was idle.

    The sequences are those of the step that is scheduled.
    """
    steps, back = log.priced.log, 2 if log.priced.pipelined else 1
    seconds = np.full(len(steps), np.nan)
    seconds[back:] = steps.schedule_start_s[back:] - steps.update_end_s[:-back]
    seconds[~log.priced.resumed | (seconds < 0)] = np.nan
    return seconds


# Without steps in flight -------------------------------------------------------------------------------------------


def _fit_alone(logs: Sequence[FitLog], start: Mode, missing: list[str]) -> Mode:
    """Prepare and launch times of all ways at once; time by sequences is shared by them."""
    ways = [way for way in (FULL, PIECEWISE, EAGER) if _count(logs, way) >= FEWEST]
    missing += [
        f"{KINDS[way]}: {_count(logs, way)} steps, too few to fit; kept as it was"
        for way in (FULL, PIECEWISE, EAGER)
        if way not in ways
    ]
    if not ways:
        return start
    measured, gpu, sequences, place, layers = _gather_alone(logs, ways)
    at_once = np.array([way == FULL for way in ways])

    def errors(figures: Floats, aftermath: Mask) -> Floats:
        prepare, each, after = figures[: len(ways)], figures[-2], figures[-1]
        launch = np.where(at_once, 0.0, figures[len(ways) : -2])
        host = prepare[place] + each * sequences
        predicted = host + np.maximum(gpu + after * aftermath, launch[place] * layers)
        return np.asarray(predicted / measured - 1)

    # From above: launches that are shorter than all GPU times would leave no slope to follow.
    least = [float(np.quantile((measured / layers)[place == index], 0.2)) for index in range(len(ways))]
    begin = [1e-3] * len(ways) + least + [1e-5, 1e-4]
    aftermaths = {
        steps: np.concatenate([aftermath_of(log.priced, steps)[_wanted(log, ways)] for log in logs])
        for steps in AFTERMATHS
    }
    best: Any = None
    for steps, aftermath in aftermaths.items():
        tried = least_squares(
            errors, begin, bounds=(0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE, x_scale=begin, args=(aftermath,)
        )
        if best is None or tried.cost < best[0]:
            best = tried.cost, tried.x, steps
    _, found, steps = best
    mode = replace(start, collect_us=0.0, aftermath=Aftermath(round(float(found[-1]) * 1e6, 2), steps))
    for index, way in enumerate(ways):
        layer_s, here = float(found[len(ways) + index]), place == index
        bound = int((gpu[here] < layer_s * layers[here]).sum())
        layer_us = round(layer_s * 1e6, 2)
        if at_once[index]:
            layer_us = 0.0
        elif bound < FEWEST_BOUND:
            layer_us = launches(start)[way].layer_us
            missing.append(f"{KINDS[way]}.layer_us: {bound} launch-bound steps, too few to fit; kept as it was")
        prepare = HostTime(round(float(found[index]) * 1e6, 2), round(float(found[-2]) * 1e6, 2))
        mode = _with_way(mode, way, Launch(prepare, layer_us))
    return mode


def _gather_alone(logs: Sequence[FitLog], ways: Sequence[int]) -> tuple[Floats, Floats, Ints, Ints, Ints]:
    """(measured seconds, GPU seconds, sequences, index of the way, layers) of the steps to fit to."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for log in logs:
        wanted = _wanted(log, ways)
        steps, place = log.priced.log, np.searchsorted(ways, log.priced.kind[wanted])
        columns.append(
            (
                (steps.output_ready_s - steps.schedule_end_s)[wanted],
                log.priced.gpu_s[wanted],
                log.priced.sequences[wanted],
                place,
                np.full(len(place), log.layers),
            )
        )
    measured, gpu, sequences, place, layers = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return measured, gpu, sequences, place, layers


def _wanted(log: FitLog, ways: Sequence[int]) -> Mask:
    return np.asarray(log.used & np.isin(log.priced.kind, ways))


# With steps in flight ----------------------------------------------------------------------------------------------


def _fit_in_flight(logs: Sequence[FitLog], start: Mode, missing: list[str]) -> Mode:
    mode = _fit_launches(logs, start, missing)
    sequences, beyond = _beyond_price(logs, mode, FULL, HostTime())
    if len(beyond) < FEWEST:
        missing.append(f"full.gpu: {len(beyond)} steps in a row, too few to fit; kept as it was")
    else:
        mode = _with_way(mode, FULL, replace(mode.full, gpu=robust_line(sequences, beyond)))
    for way in (PIECEWISE, EAGER):
        sequences, beyond = _beyond_price(logs, mode, way, mode.full.gpu)
        launch = launches(mode)[way]
        if len(beyond) < FEWEST:
            missing.append(f"{KINDS[way]}.gpu: {len(beyond)} GPU-bound steps, too few to fit; kept as it was")
            continue
        each = mode.full.gpu.sequence_us
        step_us = float(np.median(beyond * 1e6 - each * sequences))
        mode = _with_way(mode, way, replace(launch, gpu=HostTime(round(max(step_us, 0.0), 2), each)))
    missing.append("prepare: an engine with steps in flight hides it; kept as it was")
    return mode


def _fit_launches(logs: Sequence[FitLog], mode: Mode, missing: list[str]) -> Mode:
    """`layer_us` from the outputs that waited for the launch of the step after them."""
    for way in (FULL, PIECEWISE, EAGER):
        launch = launches(mode)[way]
        layer_us = [_launch_us(log, way, launch) for log in logs]
        found = np.concatenate(layer_us)
        if len(found) < FEWEST_BOUND:
            missing.append(f"{KINDS[way]}.layer_us: {len(found)} outputs waited for a launch, too few to fit; kept")
            continue
        mode = _with_way(mode, way, replace(launch, layer_us=round(_usual(found), 2)))
    return mode


def _usual(values: Floats) -> float:
    """The value with the least loss: between the median and the mean, as the steps of the other mode are fitted."""
    middle = float(np.median(values))
    if not middle > 0:
        return 0.0

    def errors(value: Floats) -> Floats:
        return np.asarray((value[0] - values) / middle)

    found = least_squares(errors, [middle], bounds=(0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE, x_scale=middle)
    return float(found.x[0])


def _launch_us(log: FitLog, way: int, launch: Launch) -> Floats:
    """Microseconds a layer of the launches for which the output before plainly waited: by its price the GPU was done
    a tenth of that price and more before."""
    priced, steps = log.priced, log.priced.log
    waited = np.full(len(steps), np.nan)
    waited[1:] = steps.output_ready_s[:-1] - steps.schedule_end_s[1:]
    before = np.concatenate([[np.nan], priced.gpu_s[:-1]])
    wanted = log.used & (priced.kind == way) & steps.pipelined
    wanted[1:] &= priced.kind[:-1] == FULL
    with np.errstate(invalid="ignore"):
        wanted &= waited > 1.1 * before
    each_us = (waited - host_s(launch.prepare, priced.sequences)) * 1e6 / log.layers
    each_us = each_us[wanted]
    return np.asarray(each_us[each_us > 0])


def _beyond_price(logs: Sequence[FitLog], mode: Mode, way: int, full_gpu: HostTime) -> tuple[Ints, Floats]:
    """(sequences, seconds beyond its price) of GPU-bound steps of one way.

    Decodes alone: three in a row, from output to output. Others stand between decodes: the output before may wait for
    the launch, so the time is from the output before that.
    """
    all_sequences, all_beyond = [], []
    for log in logs:
        priced, ready = log.priced, log.priced.log.output_ready_s
        kind, gpu = priced.kind, priced.gpu_s
        full, flying = kind == FULL, priced.log.pipelined
        steps = np.arange(2, len(kind) - 1)
        if way == FULL:
            wanted = full[steps] & full[steps - 1] & full[steps + 1] & flying[steps] & flying[steps + 1]
            beyond = ready[steps] - ready[steps - 1] - gpu[steps]
        else:
            own = (kind[steps] == way) & full[steps - 1] & full[steps - 2] & full[steps + 1]
            launch_s = 1e-6 * log.layers * launches(mode)[way].layer_us + host_s(
                launches(mode)[way].prepare, priced.sequences[steps]
            )
            wanted = own & flying[steps] & flying[steps - 1] & (gpu[steps] > 1.25 * launch_s)
            earlier = gpu[steps - 1] + host_s(full_gpu, priced.sequences[steps - 1])
            beyond = ready[steps] - ready[steps - 2] - earlier - gpu[steps]
        wanted &= log.used[steps]
        all_sequences.append(priced.sequences[steps][wanted])
        all_beyond.append(beyond[wanted])
    return np.concatenate(all_sequences), np.concatenate(all_beyond)


def _count(logs: Sequence[FitLog], way: int) -> int:
    return sum(int((log.used & (log.priced.kind == way)).sum()) for log in logs)


def _with_way(mode: Mode, way: int, launch: Launch) -> Mode:
    changed: dict[str, Any] = {KINDS[way]: launch}
    return replace(mode, **changed)
