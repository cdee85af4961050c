"""A step log priced: what each logged step should have taken, given what ran in it and what was before it.

Nothing of the simulation's scheduling is in this: the composition of every step, and the times of those before it, are
the log's. What is left is the error of prices and host times alone.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.costs import StepCosts
from simulator.engines.profile import HostTime, Launch, Mode, padded_tokens
from simulator.power_limit import Heat
from simulator.step_log_file import LoggedSteps
from simulator.trace import Floats, Ints

FULL, PIECEWISE, EAGER, EMPTY = range(4)
KINDS = ("full", "piecewise", "eager", "empty")
"""How steps run: as one CUDA graph, as graphs between attention calls, kernel by kernel, and not at all."""
NS_PER_S = 1e9


@dataclass(frozen=True)
class PricedLog:
    """A log with what its steps are: `kind` of each, its `sequences`, and `gpu_s`, GPU seconds by the cost table, with
    padding to captured sizes and under the power limit, but without `Launch.gpu`. `workers`: whether other processes
    than the scheduler's launch them, as for more than one GPU (see `simulator.engines.times.EngineTimes`)."""

    log: LoggedSteps
    kind: Ints
    sequences: Ints
    gpu_s: Floats
    workers: bool = False

    @property
    def pipelined(self) -> bool:
        """Whether the engine scheduled steps ahead."""
        return bool(np.mean(self.log.pipelined[1:]) > 0.5) if len(self.log) > 1 else False

    @cached_property
    def resumed(self) -> NDArray[np.bool_]:
        """Of each step, whether the engine was at work when it was scheduled: it continues a request. A request's first
        chunk does not, though it may have a context: a cached prefix."""
        resumed = self.log.decodes > 0
        seen: set[int] = set()
        for step, chunks in enumerate(self.log.chunks):
            requests = {request for request, _, _ in chunks}
            resumed[step] |= not seen.isdisjoint(requests)
            seen |= requests
        resumed[0] = False
        return np.asarray(resumed)


def price_log(
    log: LoggedSteps, costs: StepCosts, captured: list[int], heat: Heat | None = None, *, workers: bool = False
) -> PricedLog:
    """`log` at `costs`, with CUDA graphs for the `captured` numbers of tokens; `workers` as of PricedLog. O(steps)."""
    padded = padded_tokens(captured)
    tokens = log.tokens
    kind = np.where(tokens == 0, EMPTY, np.where(tokens >= len(padded), EAGER, PIECEWISE))
    kind[(log.num_chunks == 0) & (kind == PIECEWISE)] = FULL
    gpu_s = np.zeros(len(log))
    end_ns = 0
    decoded_ns = 0
    for step, (count, of_step) in enumerate(zip(tokens.tolist(), log.chunks, strict=True)):
        if not count:
            continue
        chunks = [(context, new) for _, context, new in of_step]
        decodes = int(log.decodes[step])
        price = float(costs.step_ns(decodes, int(log.decode_context[step]), int(log.longest[step]), chunks))
        if count < len(padded):
            price += costs.token_ns(padded[count]) - costs.token_ns(count)
        start_ns = max(int(log.schedule_end_s[step] * NS_PER_S), end_ns)
        if heat is not None and chunks:
            price = heat.step_ns(start_ns, decoded_ns, count, price)
        elif heat is not None:
            every_ns = (log.output_ready_s[step] - log.output_ready_s[step - 1]) * NS_PER_S if step else price
            price *= heat.during_decodes(decodes, price, max(every_ns, price))
        end_ns = start_ns + int(price)
        decoded_ns = end_ns
        gpu_s[step] = price / NS_PER_S
    return PricedLog(log, kind, log.decodes + log.num_chunks, gpu_s, workers)


def host_s(time: HostTime, sequences: Ints) -> Floats:
    """Seconds for each number of sequences."""
    return np.asarray(1e-6 * (time.step_us + time.sequence_us * sequences), dtype=np.float64)


def launches(mode: Mode) -> tuple[Launch, Launch, Launch]:
    """The ways to run a step in the order of KINDS."""
    return mode.full, mode.piecewise, mode.eager


@dataclass(frozen=True)
class Predicted:
    """Seconds of each logged step, measured and predicted; NaN in both where the log does not tell.

    Without steps in flight a step is `output_ready - schedule_end`. With them it lasts from where the GPU was done with
    the step before to its own output, unless that waited for the launch of the step after it. Where the output before
    waited so, the GPU was done when it should have been. Where workers launch, no output waits so.
    """

    measured_s: Floats
    predicted_s: Floats
    ahead_s: Floats
    """Predicted - measured time of each output, given all before it."""


def predict(priced: PricedLog, mode: Mode, layers: int) -> Predicted:
    """What `mode` says of each step."""
    return _predict_in_flight(priced, mode, layers) if priced.pipelined else _predict_alone(priced, mode, layers)


def _by_kind(priced: PricedLog, mode: Mode, layers: int) -> tuple[Floats, Floats, Floats]:
    """(seconds to prepare, to launch, of the GPU) of each step; 0 of empty ones."""
    prepare, launch, gpu = (np.zeros(len(priced.kind)) for _ in range(3))
    for kind, way in enumerate(launches(mode)):
        of_kind = priced.kind == kind
        prepare[of_kind] = host_s(way.prepare, priced.sequences[of_kind])
        launch[of_kind] = 1e-6 * layers * way.layer_us
        gpu[of_kind] = priced.gpu_s[of_kind] + host_s(way.gpu, priced.sequences[of_kind])
    gpu[aftermath_of(priced, mode.aftermath.steps)] += 1e-6 * mode.aftermath.step_us
    return prepare, launch, gpu


def aftermath_of(priced: PricedLog, steps: int) -> NDArray[np.bool_]:
    """Of each step, whether it is of decodes alone and among the first `steps` after an eager one."""
    place = np.arange(len(priced.kind))
    last = np.maximum.accumulate(np.where(priced.kind == EAGER, place, -1))
    return np.asarray((priced.kind == FULL) & (last >= 0) & (place - last <= steps))


def _predict_alone(priced: PricedLog, mode: Mode, layers: int) -> Predicted:
    log = priced.log
    prepare, launch, gpu = _by_kind(priced, mode, layers)
    measured = log.output_ready_s - log.schedule_end_s
    predicted = prepare + np.maximum(gpu, launch) + 1e-6 * mode.collect_us
    empty = priced.kind == EMPTY
    measured[empty] = predicted[empty] = np.nan
    return Predicted(measured, predicted, predicted - measured)


def _predict_in_flight(priced: PricedLog, mode: Mode, layers: int) -> Predicted:
    """One step ahead: see `Predicted`."""
    log = priced.log
    prepare, launch, gpu = _by_kind(priced, mode, layers)
    collect = 1e-6 * mode.collect_us
    prepared, launched = _host_s(priced, prepare, launch)
    ready, resumed = log.output_ready_s, priced.resumed
    measured, predicted, ahead = (np.full(len(log), np.nan) for _ in range(3))
    free = -np.inf
    for step in np.flatnonzero(priced.kind != EMPTY).tolist():
        done = max(max(free, prepared[step]) + gpu[step], launched[step])
        waits = not priced.workers and step + 1 < len(log) and log.pipelined[step + 1]
        next_launched = launched[step + 1] if waits else -np.inf
        ahead[step] = max(done + collect, next_launched) - ready[step]
        if next_launched > done + collect:
            free = done
            continue
        if resumed[step] and prepared[step] < free:
            measured[step], predicted[step] = ready[step] - free, done + collect - free
        free = ready[step] - collect
    return Predicted(measured, predicted, ahead)


def _host_s(priced: PricedLog, prepare: Floats, launch: Floats) -> tuple[Floats, Floats]:
    """When the inputs of each step are prepared, and when its last kernel is launched. A worker does one step after the
    other; what has an output is launched."""
    log = priced.log
    prepared = log.schedule_end_s + prepare
    launched_s = -np.inf
    for step in np.flatnonzero(priced.kind != EMPTY).tolist() if priced.workers else ():
        prepared[step] = max(log.schedule_end_s[step], launched_s) + prepare[step]
        launched_s = min(prepared[step] + launch[step], log.output_ready_s[step])
    return prepared, prepared + launch
