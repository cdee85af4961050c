"""The clock of an engine with a host: see `simulator.engines.profile` for what takes time.

One recursion serves both modes. The host plans step k at time t. Its inputs are prepared at
p = t + schedule + prepare, its kernels launched at l = p + layers x launch. The GPU runs it from max(p, end of step
k-1) and is done no earlier than l. Its outputs are collected then, and, with steps in flight, not before the next step
has been launched: the same thread does both. After update and what is between, the host plans the next.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.costs import DecodePiece, StepCosts
from simulator.engines.profile import EngineProfile, HostTime, Launch, Mode, padded_tokens
from simulator.power_limit import Heat
from simulator.step_times import FOREVER


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to run a step: host time until the GPU can start, to launch all layers from then on, and GPU time
    beyond the table's."""

    prepare: HostTime
    launch_ns: int
    gpu: HostTime


class EngineTimes:
    """`StepTimes` of `layers` layers on a GPU of `costs`, its host as `mode` says.

    `in_flight`: whether the next step is planned while one runs. `captured`: numbers of tokens with a CUDA graph.
    """

    def __init__(
        self,
        costs: StepCosts,
        mode: Mode,
        captured: list[int],
        layers: int,
        *,
        in_flight: bool,
        heat: Heat | None = None,
    ) -> None:
        self._step_ns, self._piece, self._token_ns, self._heat = costs.step_ns, costs.decode_piece, costs.token_ns, heat
        self.measured_context = costs.measured_context
        self.count_beyond = costs.count_beyond
        self._mode, self._in_flight = mode, in_flight
        self._padded = padded_tokens(captured)
        self._full, self._piecewise, self._eager = (
            _way(launch, layers) for launch in (mode.full, mode.piecewise, mode.eager)
        )
        self._collect_ns = int(1000 * mode.collect_us)
        self.arrival_ns, self.delivery_ns = int(1000 * mode.arrival_us), int(1000 * mode.delivery_us)
        self._booked = 0
        self._gpu_end_ns = 0
        self._aftermath_ns = int(1000 * mode.aftermath.step_us)
        self._quiet_from = 0
        """The first step that no eager one before makes slower, by place in the log."""

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
        sequences = decodes + len(chunks)
        way = self._way(tokens, chunks)
        prepared_ns = now_ns + self._mode.schedule.ns(sequences) + way.prepare.ns(sequences)
        launched_ns = prepared_ns + way.launch_ns
        last_ns = ends_ns[-1] if ends_ns else 0
        free_ns = self._gpu_end_ns if len(ends_ns) == self._booked else last_ns - self._collect_ns
        if now_ns < last_ns < launched_ns:
            ends_ns[-1] = last_ns = launched_ns
        start_ns = max(free_ns, prepared_ns)
        if chunks:
            price_ns = self._step_ns(decodes, decode_context, longest, chunks) + self._padding_ns(tokens)
            time_ns = price_ns if self._heat is None else self._heat.step_ns(start_ns, free_ns, tokens, price_ns)
            gpu_ns = int(time_ns) + way.gpu.ns(sequences)
        elif decodes:
            constant, slope, _ = self._gpu_piece(ends_ns, decodes, decode_context, longest)
            gpu_ns = int(constant + slope * decode_context)
            if decode_context > decodes * self.measured_context:
                self.count_beyond(decodes, decode_context, 1)
        else:
            gpu_ns = 0
        if way is self._eager:
            self._quiet_from = len(ends_ns) + 1 + self._mode.aftermath.steps
        self._gpu_end_ns = gpu_end_ns = max(start_ns + gpu_ns, launched_ns)
        ends_ns.append(gpu_end_ns + self._collect_ns)
        self._booked = len(ends_ns)
        return max(now_ns, last_ns)

    def decode_piece(self, ends_ns: "array[int]", decodes: int, decode_context: int, longest: int) -> DecodePiece:
        """See `StepTimes.decode_piece`."""
        constant, slope, until = self._gpu_piece(ends_ns, decodes, decode_context, longest)
        if self._in_flight:
            return constant, slope, until
        way = self._way(decodes, ())
        if constant + slope * decode_context < way.launch_ns:
            until = min(until, (way.launch_ns - constant) / slope) if slope > 0 else until
            constant, slope = way.launch_ns, 0.0
        return self._host_ns(decodes, way) + constant, slope, until

    def foreseen(self, ends_ns: "array[int]", decodes: int, interval_ns: float) -> int:
        """See `StepTimes.foreseen`: not where the GPU waits for the host although steps are in flight."""
        if self._in_flight:
            way = self._way(decodes, ())
            last_ns = ends_ns[-1] - ends_ns[-2] if len(ends_ns) > 1 else 0
            if min(last_ns, interval_ns) < self._host_ns(decodes, way) + max(way.launch_ns, self._collect_ns):
                return 0
        return self._quiet_from - len(ends_ns) if self._quiet_from > len(ends_ns) else FOREVER

    def pause_ns(self, decodes: int) -> int:
        """See `StepTimes.pause_ns`."""
        return self._mode.update.ns(decodes) + self._mode.between.ns(decodes)

    def _gpu_piece(self, ends_ns: "array[int]", decodes: int, decode_context: int, longest: int) -> DecodePiece:
        """GPU time of steps of decodes alone, after those of `ends_ns`."""
        constant, slope, until = self._piece(decodes, decode_context, longest)
        constant += self._padding_ns(decodes)
        way = self._way(decodes, ())
        if self._heat is not None:
            time_ns = constant + slope * decode_context
            every_ns = time_ns if self._in_flight else time_ns + self._host_ns(decodes, way)
            factor = self._heat.during_decodes(decodes, time_ns, every_ns)
            constant, slope = factor * constant, factor * slope
        constant += way.gpu.ns(decodes)
        return (constant + self._aftermath_ns if len(ends_ns) < self._quiet_from else constant), slope, until

    def _host_ns(self, sequences: int, way: _Way) -> int:
        """Host time between the GPU's work on two steps; with steps in flight, between the end of a step and the launch
        of the next but one."""
        before = self.pause_ns(sequences) + self._mode.schedule.ns(sequences) + way.prepare.ns(sequences)
        return before if self._in_flight else before + self._collect_ns

    def _way(self, tokens: int, chunks: Sequence[tuple[int, int]]) -> _Way:
        if tokens >= len(self._padded):
            return self._eager
        return self._piecewise if chunks else self._full

    def _padding_ns(self, tokens: int) -> float:
        if tokens >= len(self._padded):
            return 0.0
        return self._token_ns(self._padded[tokens]) - self._token_ns(tokens)


def _way(launch: Launch, layers: int) -> _Way:
    return _Way(launch.prepare, int(1000 * layers * launch.layer_us), launch.gpu)


def engine_times(
    costs: StepCosts,
    profile: EngineProfile,
    layers: int,
    *,
    max_num_seqs: int | None,
    steps_in_flight: int,
    heat: Heat | None = None,
) -> EngineTimes:
    """The clock of an engine with a policy of so many steps in flight, and at most `max_num_seqs` sequences at once
    (None: any number)."""
    captured = profile.cuda_graphs.captured(max_num_seqs)
    mode = profile.mode(steps_in_flight)
    return EngineTimes(costs, mode, captured, layers, in_flight=steps_in_flight > 1, heat=heat)
