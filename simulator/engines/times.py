"""The clock of an engine with a host: see `simulator.engines.profile` for what takes time.

One recursion serves both modes. The host plans step k at time t. Its inputs are prepared at
p = t + schedule + prepare, its kernels launched at l = p + layers x launch. The GPU runs it from max(p, end of step
k-1) and is done no earlier than l. Its outputs are collected then, and, with steps in flight, not before the next step
has been launched: the same thread does both. After update and what is between, the host plans the next.

Steps of decodes alone may pass unseen (`CoastingScheduler.coast`). What they change is caught up with at the next look,
and `foreseen` and the pieces of `decode_piece` end where they would go otherwise than one asked for: coasting is exact.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from simulator.costs import DecodePiece, StepCosts
from simulator.engines.profile import EngineProfile, HostTime, Launch, Mode, padded_tokens
from simulator.power_limit import Heat
from simulator.step_times import FOREVER

_SHARES = 64
"""The heat of decodes knows the GPU's share of the time between two outputs in so many grades: within one the factor of
the power limit is the same for all contexts."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to run a step: host time until the GPU can start, to launch all layers from then on, and GPU time
    beyond the table's."""

    prepare: HostTime
    launch_ns: int
    gpu: HostTime


@dataclass(frozen=True, slots=True)
class _Alone:
    """A step of so many decodes alone: how it runs, GPU time for padding and beyond the table's, and host time.

    That is between the GPU's work on two steps; with steps in flight, from the end of a step to the inputs of the next
    but one.
    """

    way: _Way
    padding_ns: float
    gpu_ns: int
    pause_ns: int
    host_ns: int


class EngineTimes:
    """`StepTimes` of `layers` layers on a GPU of `costs`, its host as `mode` says.

    `in_flight`: whether the next step is planned while one runs. `captured`: numbers of tokens with a CUDA graph.
    `workers`: whether steps are prepared and launched by other processes than the one that schedules (vLLM's
    `MultiprocExecutor`, for more than one GPU): launching a step then holds up no output, only the launch of the next.
    """

    hosted = True

    def __init__(
        self,
        costs: StepCosts,
        mode: Mode,
        captured: list[int],
        layers: int,
        *,
        in_flight: bool,
        workers: bool = False,
        heat: Heat | None = None,
    ) -> None:
        self._step_ns, self._piece, self._token_ns, self._heat = costs.step_ns, costs.decode_piece, costs.token_ns, heat
        self.measured_context = costs.measured_context
        self.count_beyond = costs.count_beyond
        self._mode, self._in_flight, self._workers = mode, in_flight, workers
        self._launched_ns = 0
        self._padded = padded_tokens(captured)
        self._full, self._piecewise, self._eager = (
            _way(launch, layers) for launch in (mode.full, mode.piecewise, mode.eager)
        )
        self._collect_ns = int(1000 * mode.collect_us)
        self.arrival_ns, self.delivery_ns = int(1000 * mode.arrival_us), int(1000 * mode.delivery_us)
        self._alone: dict[int, _Alone] = {}
        self._seen = 0
        """How many steps of the log the state below knows of."""
        self._gpu_end_ns = 0
        self._aftermath_ns = int(1000 * mode.aftermath.step_us)
        self._quiet_from = 0
        """The first step that no eager one before makes slower, by place in the log."""
        self._unseen_eager, self._unseen_heat = False, 0.0
        """Of the steps beyond those, if there are any: whether they run eagerly, and how hot the GPU gets."""

    def book(
        self,
        ends_ns: "array[int]",
        now_ns: int,
        tokens: int,
        decodes: int,
        decode_context: int,
        longest: int,
        chunks: Sequence[tuple[int, int]],
    ) -> int:
        """See `StepTimes.book`."""
        self._catch_up(ends_ns)
        sequences = decodes + len(chunks)
        way = self._way(tokens, chunks)
        scheduled_ns = now_ns + self._mode.schedule.ns(sequences)
        if self._workers and scheduled_ns < self._launched_ns:
            scheduled_ns = self._launched_ns
        prepared_ns = scheduled_ns + way.prepare.ns(sequences)
        self._launched_ns = launched_ns = prepared_ns + way.launch_ns
        last_ns, free_ns = ends_ns[-1] if ends_ns else 0, self._gpu_end_ns
        if now_ns < last_ns < launched_ns and not self._workers:
            ends_ns[-1] = last_ns = launched_ns
        start_ns = max(free_ns, prepared_ns)
        if chunks:
            price_ns = self._step_ns(decodes, decode_context, longest, chunks) + self._padding_ns(tokens)
            time_ns = price_ns if self._heat is None else self._heat.step_ns(start_ns, free_ns, tokens, price_ns)
            gpu_ns = int(time_ns) + way.gpu.ns(sequences)
        elif decodes:
            gpu_ns = self._decodes_ns(ends_ns, decodes, decode_context, longest)
        else:
            gpu_ns = 0
        if way is self._eager:
            self._quiet_from = len(ends_ns) + 1 + self._mode.aftermath.steps
        self._gpu_end_ns = gpu_end_ns = max(start_ns + gpu_ns, launched_ns)
        ends_ns.append(gpu_end_ns + self._collect_ns)
        self._seen = len(ends_ns)
        return max(now_ns, last_ns)

    def decode_piece(self, ends_ns: "array[int]", decodes: int, decode_context: int, longest: int) -> DecodePiece:
        """See `StepTimes.decode_piece`."""
        self._catch_up(ends_ns)
        (constant, slope, until), self._unseen_heat = self._gpu_piece(ends_ns, decodes, decode_context, longest)
        alone = self._of_alone(decodes)
        self._unseen_eager = alone.way is self._eager
        if self._in_flight:
            return constant, slope, until
        constant, launched_ns = alone.host_ns + constant, alone.host_ns + alone.way.launch_ns
        if constant + slope * decode_context < launched_ns:
            until = min(until, (launched_ns - constant) / slope) if slope > 0 else until
            return launched_ns, 0.0, until
        return constant, slope, until

    def foreseen(self, ends_ns: "array[int]", decodes: int, interval_ns: float) -> int:
        """See `StepTimes.foreseen`: none where the GPU, or an output, waits for the host although steps are in flight.

        With h the host's time from an output to the launch of the next step but one, that one's inputs are prepared
        before the GPU is free, and its kernels launched before the output in between, if h and launch (or collect, if
        that is longer) fit between two outputs.
        """
        if self._in_flight:
            alone = self._of_alone(decodes)
            last_ns = ends_ns[-1] - ends_ns[-2] if len(ends_ns) > 1 else 0
            if min(last_ns, interval_ns) < alone.host_ns + max(alone.way.launch_ns, self._collect_ns):
                return 0
            if self._workers and self._launched_ns + alone.host_ns > ends_ns[-1] - self._collect_ns:
                return 0
        return self._quiet_from - len(ends_ns) if self._quiet_from > len(ends_ns) else FOREVER

    def pause_ns(self, decodes: int) -> int:
        """See `StepTimes.pause_ns`."""
        return self._of_alone(decodes).pause_ns

    def _catch_up(self, ends_ns: "array[int]") -> None:
        """Steps have passed as the last `decode_piece` said."""
        if len(ends_ns) == self._seen:
            return
        self._seen = len(ends_ns)
        self._gpu_end_ns = ends_ns[-1] - self._collect_ns
        if self._unseen_eager:
            self._quiet_from = self._seen + self._mode.aftermath.steps
        if self._heat is not None:
            self._heat.of_decodes = self._unseen_heat

    def _decodes_ns(self, ends_ns: "array[int]", decodes: int, decode_context: int, longest: int) -> int:
        """GPU time of one step of decodes alone, rounded as when it passes unseen."""
        (constant, slope, _), heat = self._gpu_piece(ends_ns, decodes, decode_context, longest)
        if self._heat is not None:
            self._heat.of_decodes = heat
        if decode_context > decodes * self.measured_context:
            self.count_beyond(decodes, decode_context, 1)
        host_ns = 0 if self._in_flight else self._of_alone(decodes).host_ns
        return int(host_ns + constant + slope * decode_context) - host_ns

    def _gpu_piece(
        self, ends_ns: "array[int]", decodes: int, decode_context: int, longest: int
    ) -> tuple[DecodePiece, float]:
        """GPU time of steps of decodes alone, after those of `ends_ns`, and how hot the GPU gets."""
        constant, slope, until = self._piece(decodes, decode_context, longest)
        alone, heat = self._of_alone(decodes), 0.0
        constant += alone.padding_ns
        if self._heat is not None:
            share = 1.0
            if not self._in_flight:
                share, share_ns = _share(constant + slope * decode_context, alone.host_ns)
                until = min(until, (share_ns - constant) / slope - 1) if slope > 0 else until
            factor, heat = self._heat.factor_of_decodes(decodes, share)
            constant, slope = factor * constant, factor * slope
        constant += alone.gpu_ns
        if len(ends_ns) < self._quiet_from and alone.way is self._full:
            constant += self._aftermath_ns
        return (constant, slope, until), heat

    def _of_alone(self, decodes: int) -> _Alone:
        found = self._alone.get(decodes)
        if found is None:
            way, mode = self._way(decodes, ()), self._mode
            pause_ns = mode.update.ns(decodes) + mode.between.ns(decodes)
            host_ns = pause_ns + mode.schedule.ns(decodes) + way.prepare.ns(decodes)
            if not self._in_flight:
                host_ns += self._collect_ns
            gpu_ns = way.gpu.ns(decodes)
            found = self._alone[decodes] = _Alone(way, self._padding_ns(decodes), gpu_ns, pause_ns, host_ns)
        return found

    def _way(self, tokens: int, chunks: Sequence[tuple[int, int]]) -> _Way:
        if tokens >= len(self._padded):
            return self._eager
        return self._piecewise if chunks else self._full

    def _padding_ns(self, tokens: int) -> float:
        if tokens >= len(self._padded):
            return 0.0
        return self._token_ns(self._padded[tokens]) - self._token_ns(tokens)


def _share(gpu_ns: float, host_ns: int) -> tuple[float, float]:
    """The middle of the grade of the GPU's share of the time, and the GPU time from which the next begins."""
    grade = int(_SHARES * gpu_ns / (gpu_ns + host_ns))
    if grade >= _SHARES - 1:
        return 1.0 if grade == _SHARES else (grade + 0.5) / _SHARES, inf
    return (grade + 0.5) / _SHARES, host_ns * (grade + 1) / (_SHARES - grade - 1)


def _way(launch: Launch, layers: int) -> _Way:
    return _Way(launch.prepare, int(1000 * layers * launch.layer_us), launch.gpu)


def engine_times(
    costs: StepCosts,
    profile: EngineProfile,
    layers: int,
    *,
    max_num_seqs: int | None,
    steps_in_flight: int,
    ranks: int = 1,
    heat: Heat | None = None,
) -> EngineTimes:
    """The clock of an engine with a policy of so many steps in flight, and at most `max_num_seqs` sequences at once
    (None: any number). Several ranks run in processes of their own."""
    captured = profile.cuda_graphs.captured(max_num_seqs)
    mode = profile.mode(steps_in_flight)
    return EngineTimes(costs, mode, captured, layers, in_flight=steps_in_flight > 1, workers=ranks > 1, heat=heat)
