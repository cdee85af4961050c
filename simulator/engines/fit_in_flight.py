"""The fit of an engine with steps in flight: launches that outputs waited for, and GPU time beyond the table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.engines.fit_line import FEWEST, FEWEST_BOUND, LOSS_SCALE, FitLog, Mask, told_line, with_way
from simulator.engines.logged import EAGER, FULL, KINDS, PIECEWISE, host_s, launches
from simulator.engines.profile import HostTime, Launch, Mode
from simulator.regression import least_squares
from simulator.trace import Floats, Ints

LEAST_SHARE = 0.1
"""Share of the outputs that may wait for a launch, below which those that did were held up by something else."""


def fit_in_flight(logs: Sequence[FitLog], start: Mode, missing: list[str]) -> Mode:
    mode = _fit_launches(logs, start, missing)
    sequences, beyond = _beyond_price(logs, mode, FULL, HostTime())
    gpu = told_line("full.gpu", sequences, beyond, mode.full.gpu, missing)
    mode = with_way(mode, FULL, replace(mode.full, gpu=gpu))
    for way in (PIECEWISE, EAGER):
        sequences, beyond = _beyond_price(logs, mode, way, mode.full.gpu)
        launch = launches(mode)[way]
        if len(beyond) < FEWEST:
            missing.append(f"{KINDS[way]}.gpu: {len(beyond)} GPU-bound steps, too few to fit; kept as it was")
            continue
        each = mode.full.gpu.sequence_us
        step_us = float(np.median(beyond * 1e6 - each * sequences))
        mode = with_way(mode, way, replace(launch, gpu=HostTime(round(max(step_us, 0.0), 2), each)))
    missing.append("prepare, collect_us, aftermath: an engine with steps in flight hides them; kept as they were")
    return mode


def _fit_launches(logs: Sequence[FitLog], mode: Mode, missing: list[str]) -> Mode:
    """`layer_us` from the outputs that waited for the launch of the step after them; of workers from a step's own."""
    if all(log.priced.workers for log in logs):
        return _fit_own_launches(logs, mode, missing)
    logs = [log for log in logs if not log.priced.workers]
    for way in (FULL, PIECEWISE, EAGER):
        launch = launches(mode)[way]
        could = sum(int(_could_wait(log, way).sum()) for log in logs)
        found = np.concatenate([_launch_us(log, way, launch) for log in logs])
        if len(found) < max(FEWEST_BOUND, LEAST_SHARE * could):
            told = f"{len(found)} of {could} outputs waited for a launch, too few to fit"
            missing.append(f"{KINDS[way]}.layer_us: {told}; kept as it was")
            continue
        mode = with_way(mode, way, replace(launch, layer_us=round(_usual(found), 2)))
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


def _could_wait(log: FitLog, way: int) -> Mask:
    """Of each step, whether it is one of `way` while one of decodes alone ran, whose output may wait for its launch."""
    wanted = log.used & (log.priced.kind == way) & log.priced.log.pipelined
    wanted[1:] &= log.priced.kind[:-1] == FULL
    return np.asarray(wanted)


def _launch_us(log: FitLog, way: int, launch: Launch) -> Floats:
    """Microseconds a layer of the launches for which the output before plainly waited: by its price the GPU was done
    a tenth of that price and more before."""
    priced, steps = log.priced, log.priced.log
    waited = np.full(len(steps), np.nan)
    waited[1:] = steps.output_ready_s[:-1] - steps.schedule_end_s[1:]
    before = np.concatenate([[np.nan], priced.gpu_s[:-1]])
    with np.errstate(invalid="ignore"):
        wanted = _could_wait(log, way) & (waited > 1.1 * before)
    each_us = (waited - host_s(launch.prepare, priced.sequences)) * 1e6 / log.layers
    each_us = each_us[wanted]
    return np.asarray(each_us[each_us > 0])


def _fit_own_launches(logs: Sequence[FitLog], mode: Mode, missing: list[str]) -> Mode:
    """`layer_us` of workers, from steps' own outputs: each waits for the GPU or for its launch, whichever is later."""
    for way in (PIECEWISE, EAGER):
        launch = launches(mode)[way]
        columns = [_own_columns(log, way, launch) for log in logs]
        gpu, layers, took = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        each_s, bound = 0.0, 0
        if len(took):
            each_s = _least_launch(gpu, layers, took)
            bound = int((gpu < layers * each_s).sum())
        if bound < max(FEWEST_BOUND, LEAST_SHARE * len(took)):
            told = f"{bound} of {len(took)} steps are launch-bound, too few to fit"
            missing.append(f"{KINDS[way]}.layer_us: {told}; kept as it was")
            continue
        mode = with_way(mode, way, replace(launch, layer_us=round(each_s * 1e6, 2)))
    return mode


def _own_columns(log: FitLog, way: int, launch: Launch) -> tuple[Floats, Ints, Floats]:
    """Of steps of one way after decodes: seconds from when inputs were prepared until the GPU should be done, layers,
    and seconds until the output."""
    priced, steps = log.priced, log.priced.log
    prepared = steps.schedule_end_s + host_s(launch.prepare, priced.sequences)
    free = np.concatenate([[-np.inf], steps.output_ready_s[:-1]])
    gpu = np.maximum(free - prepared, 0.0) + priced.gpu_s + host_s(launch.gpu, priced.sequences)
    took = steps.output_ready_s - prepared
    wanted = _could_wait(log, way) & (took > 0)
    return gpu[wanted], np.full(int(wanted.sum()), log.layers), took[wanted]


def _least_launch(gpu: Floats, layers: Ints, took: Floats) -> float:
    """Seconds a layer with the least loss of max(GPU, launch) against what steps took."""

    def errors(each_s: Floats) -> Floats:
        return np.asarray(np.maximum(gpu, layers * each_s[0]) / took - 1)

    begin = float(np.median(took / layers))  # from above: shorter than all GPU times there would be no slope
    found = least_squares(errors, [begin], bounds=(0, np.inf), loss="soft_l1", f_scale=LOSS_SCALE, x_scale=begin)
    return float(found.x[0])


def _beyond_price(logs: Sequence[FitLog], mode: Mode, way: int, full_gpu: HostTime) -> tuple[Ints, Floats]:
    """(sequences, seconds beyond its price) of GPU-bound steps of one way.

    Decodes alone: three in a row, from output to output. Others stand between decodes: the output before may wait for
    the launch, so the time is from the output before that, of steps whose inputs were prepared before the GPU was free.
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
            prepare_s = host_s(launches(mode)[way].prepare, priced.sequences[steps])
            launch_s = prepare_s + 1e-6 * log.layers * launches(mode)[way].layer_us
            earlier = gpu[steps - 1] + host_s(full_gpu, priced.sequences[steps - 1])
            in_time = priced.log.schedule_end_s[steps] + prepare_s < ready[steps - 2] + earlier
            wanted = own & flying[steps] & flying[steps - 1] & in_time & (gpu[steps] > 1.25 * launch_s)
            beyond = ready[steps] - ready[steps - 2] - earlier - gpu[steps]
        wanted &= log.used[steps]
        all_sequences.append(priced.sequences[steps][wanted])
        all_beyond.append(beyond[wanted])
    return np.concatenate(all_sequences), np.concatenate(all_beyond)
