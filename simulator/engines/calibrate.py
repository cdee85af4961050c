"""`calibrate-engine`: an engine profile from step logs, and how well it tells steps that it was not fitted to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from simulator.engines.fit import fit_mode
from simulator.engines.fit_line import FitLog, Mask
from simulator.engines.latency import arrival_and_delivery
from simulator.engines.logged import EAGER, EMPTY, FULL, PIECEWISE, PricedLog, predict, price_log
from simulator.engines.profile import EngineProfile, Mode
from simulator.engines.recording import OVERLAPPING, Recording
from simulator.errors import InputError
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats

BLOCK = 50
"""Steps in a row that are fitted to, or held out, together."""
ROOM_S = 0.001
"""Seconds of room that a log may leave to the time of arrival and still tell it."""
DEAR = 1.1
"""Times its measured duration, from which the price of a step is plainly that of another model or GPU."""
CLOCK_US = 1000.0
"""How far below 0 a time from one to the other may be: what clocks and a scheduler's turns leave open."""
LATEST_US = 1e6
"""Nobody waits a second for a token that is there."""
MIXED = 0.05
"""Share of steps of the other mode from which a log is of two."""
MODES = ("synchronous", "asynchronous")


@dataclass(frozen=True)
class Residuals:
    """Errors of predicted step times of one kind in one recording: per cent, signed median, median and 95th percentile
    of the absolute."""

    recording: str
    mode: str
    fitted: bool
    kind: str
    steps: int
    bias: float
    median: float
    p95: float


@dataclass(frozen=True)
class Calibration:
    """The profile, the residuals of all recordings, and a sentence for each part that no log told."""

    profile: EngineProfile
    residuals: tuple[Residuals, ...]
    unidentified: tuple[str, ...]


def calibrate(recordings: Sequence[Recording], start: EngineProfile, *, name: str, held_out: float) -> Calibration:
    """`start` with the modes fitted to `recordings`, each to blocks of steps that make up all but `held_out` of it."""
    priced = [_priced(recording, start) for recording in recordings]
    profile = replace(start, name=name)
    residuals: list[Residuals] = []
    missing: list[str] = []
    for mode_name in MODES:
        ours = [place for place, steps in enumerate(priced) if steps.pipelined == (mode_name == MODES[1])]
        if not ours:
            missing.append(f"{mode_name}: no such log; kept as it was")
            continue
        logs = [
            FitLog(priced[place], _layers(recordings[place]), fitted_blocks(len(priced[place].kind), held_out))
            for place in ours
        ]
        fitted = fit_mode(logs, getattr(start, mode_name))
        mode, latency_missing = _with_latency(fitted.mode, [recordings[place] for place in ours], mode_name)
        missing += [f"{mode_name}.{line}" for line in (*fitted.unidentified, *latency_missing)]
        if mode == getattr(start, mode_name):
            missing.append(f"{mode_name}: nothing could be fitted; kept as it was")
            continue
        mode = replace(mode, fit=_provenance([recordings[place] for place in ours], held_out))
        changed: dict[str, Any] = {mode_name: mode}
        profile = replace(profile, **changed)
        for place, fit_log in zip(ours, logs, strict=True):
            residuals += residuals_of(recordings[place].name, mode_name, fit_log, mode)
    return Calibration(profile, tuple(residuals), tuple(missing))


def fitted_blocks(steps: int, held_out: float) -> Mask:
    """Which of `steps` are fitted to: blocks of BLOCK steps, spread evenly, so that a host that is busier at times is
    so in both parts. Raises InputError where `held_out` is no share."""
    if not 0 <= held_out < 1:
        raise InputError(f"should be a share from 0 on and below 1, not {held_out}", key="--hold-out")
    block = np.arange(steps) // BLOCK
    return np.asarray(np.floor((block + 1) * held_out) == np.floor(block * held_out))


def _priced(recording: Recording, profile: EngineProfile) -> PricedLog:
    """InputError where most steps took less than the GPU's time alone should take."""
    costs = recording.costs(profile)
    captured = profile.cuda_graphs.captured(recording.max_num_seqs)
    workers = recording.table.metadata.tensor_parallel > 1
    priced = price_log(recording.log, costs, captured, costs.heat(), workers=workers)
    _require_one_stage(recording.log)
    measured = predict(priced, Mode(), _layers(recording)).measured_s
    ahead = recording.log.pipelined[1:][priced.resumed[1:]]
    if len(ahead) > BLOCK and MIXED < float(np.mean(ahead)) < 1 - MIXED:
        raise InputError(
            f"{np.mean(ahead):.0%} of the steps are scheduled before the output of the one before, the others after"
            " it; a log should be of one mode",
            path=recording.log.path,
        )
    told = np.isfinite(measured)
    dear = int((priced.gpu_s[told] > DEAR * measured[told]).sum())
    if 2 * dear > told.sum():
        problem = f"{dear} of {told.sum()} steps took less time than the GPU should need; are these the costs of the"
        raise InputError(f"{problem} log's model and GPU: {recording.table.name}?", path=recording.log.path)
    return priced


def _require_one_stage(log: LoggedSteps) -> None:
    """InputError where most steps are scheduled while two and more are under way: an engine on one stage runs one
    ahead."""
    if len(log) > 2 and float(np.mean(log.schedule_start_s[2:] < log.update_end_s[:-2])) > 0.5:
        raise InputError(f"three and more steps are under way at a time: {OVERLAPPING}", path=log.path)


def _layers(recording: Recording) -> int:
    return recording.table.metadata.model.num_hidden_layers


def _with_latency(mode: Mode, recordings: Sequence[Recording], mode_name: str) -> tuple[Mode, list[str]]:
    """Arrival and delivery by the recordings with requests; of two processes only their sum is known."""
    known = [
        arrival_and_delivery(recording.log, recording.clients)
        for recording in recordings
        if recording.clients is not None
    ]
    if not known:
        return mode, ["arrival_us, delivery_us: need the requests' times (--requests); kept as they were"]
    close = [times for times in known if times.room_s <= ROOM_S]
    if not close:
        room = min(times.room_s for times in known)
        told = f"leave {1e3 * room:.3g} ms of room" if np.isfinite(room) else "do not bound it"
        return mode, [f"arrival_us, delivery_us: the requests {told}; kept as they were"]
    arrival = float(np.median([times.arrival_s for times in close])) * 1e6
    delivery = float(np.median([times.delivery_s for times in close])) * 1e6
    one_clock = mode_name == MODES[0]
    for value in (arrival, delivery) if one_clock else (arrival + delivery,):
        if not -CLOCK_US < value < LATEST_US:
            name = "arrival and delivery together" if not one_clock else "arrival or delivery"
            raise InputError(
                f"{name} would take {value / 1e6:.3g} s; are the requests of this log's run, on its clock?",
                key="--requests",
            )
    if not one_clock:
        return replace(mode, arrival_us=round(max(arrival + delivery, 0.0), 1), delivery_us=0.0), [
            "arrival_us holds the sum of arrival and delivery: two processes have two clocks"
        ]
    return replace(mode, arrival_us=round(max(arrival, 0.0), 1), delivery_us=round(max(delivery, 0.0), 1)), []


def _provenance(recordings: Sequence[Recording], held_out: float) -> str:
    logs = ", ".join(
        f"{recording.name} ({len(recording.log):,} steps; costs {recording.table.name})" for recording in recordings
    )
    part = "all steps" if not held_out else f"{1 - held_out:.0%} of the steps, in blocks of {BLOCK},"
    return f"{datetime.now(UTC):%Y-%m-%d}: {part} of {logs}"


def residuals_of(name: str, mode_name: str, log: FitLog, mode: Mode) -> list[Residuals]:
    """Errors of `mode` on both parts of a log, by kind of step."""
    predicted = predict(log.priced, mode, log.layers)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = 100 * (predicted.predicted_s / predicted.measured_s - 1)
    kind = log.priced.kind
    chunks = log.priced.log.num_chunks > 0
    kinds = {
        "decodes only": (kind != EMPTY) & ~chunks,
        "with prefills": (kind != EMPTY) & chunks,
        "- full graph": kind == FULL,
        "- piecewise": kind == PIECEWISE,
        "- eager": kind == EAGER,
    }
    found = []
    for used in (True, False):
        for label, of_kind in kinds.items():
            values = errors[of_kind & (log.used == used) & np.isfinite(errors)]
            if len(values):
                found.append(Residuals(name, mode_name, used, label, len(values), *_quantiles(values)))
    return found


def _quantiles(errors: Floats) -> tuple[float, float, float]:
    size = np.abs(errors)
    return float(np.median(errors)), float(np.median(size)), float(np.quantile(size, 0.95))


def profile_keys(profile: EngineProfile) -> dict[str, Any]:
    """The keys of a profile's YAML; parts that are 0 are left out."""
    keys = asdict(profile)
    keys["sources"] = list(profile.sources)
    graphs = keys["cuda_graphs"]
    graphs["sizes"] = list(graphs["sizes"])
    keys["cuda_graphs"] = {key: value for key, value in graphs.items() if value}
    for mode_name in MODES:
        keys[mode_name] = _without_zeros(keys[mode_name])
    return keys


def _without_zeros(values: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_zeros(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value not in (0.0, {}, "", None)}
