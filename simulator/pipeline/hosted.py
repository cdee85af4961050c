"""When the stages of a pipeline work under an engine with a host: see `simulator.engines.profile` for what takes time.

The engine's scheduler plans a step and goes on; each stage has a process of its own (a *worker*) that prepares the
inputs and launches the kernels of one step after the other. It begins with a step when its previous one is launched.
On the first stage the step must be scheduled, too, and the tokens that it continues must have come from the last stage,
which takes `tokens_us`; on the others it begins `send_us` after the stage before has launched it, since what is sent is
announced then. The GPU starts when the inputs are prepared, the activations are there and it is free, and is done no
earlier than the last kernel is launched.
"""

from collections.abc import Sequence
from dataclasses import replace

from simulator.engines.profile import HostTime, Launch, Mode, padded_tokens
from simulator.pipeline.layers import Stage
from simulator.pipeline.prices import StagePrices
from simulator.pipeline.times import Host, PipelineTimes, SendTime
from simulator.power_limit import Heat


class HostedPipelineTimes(PipelineTimes):
    """`StepTimes` of a pipeline of `stages`, its host as `mode` says. `captured`: numbers of tokens with a CUDA
    graph."""

    hosted = True

    def __init__(
        self,
        prices: StagePrices,
        stages: Sequence[Stage],
        send_ns: SendTime,
        heats: Sequence[Heat],
        mode: Mode,
        captured: list[int],
    ) -> None:
        super().__init__(prices, len(stages), send_ns, heats)
        self._padding_ns = prices.padding_ns
        self._mode, self._padded = mode, padded_tokens(captured)
        layers = sum(stage.layers for stage in stages)
        self._layers = [stage.layers for stage in stages]
        self._shares = [stage.layers / layers for stage in stages]
        self._launched_ns = [0] * len(stages)
        self._tokens_ns, self._hand_ns = int(1000 * mode.pipeline.tokens_us), int(1000 * mode.pipeline.send_us)
        self._collect_ns = int(1000 * mode.collect_us)
        eager_us = mode.pipeline.eager_layer_us
        self._eager = mode.eager if eager_us is None else replace(mode.eager, layer_us=eager_us)
        self.arrival_ns, self.delivery_ns = int(1000 * mode.arrival_us), int(1000 * mode.delivery_us)
        self._quiet_from = 0
        """The first micro-batch that no eager one before makes slower."""

    def _waits_ns(self) -> int:
        return self.depends_ns + self._tokens_ns if self.depends_ns else 0

    def _hosts(self, fed_ns: int, now_ns: int, tokens: int, sequences: int, chunks: bool) -> Sequence[Host]:
        launch = self._launch(tokens, chunks)
        self.host_free_ns = now_ns + self._mode.schedule.ns(sequences)
        announced_ns = max(self.host_free_ns, fed_ns)
        prepare_ns, gpu_ns = launch.prepare.ns(sequences), launch.gpu.ns(sequences) + self._aftermath_ns(launch)
        padded = self._padded[tokens] if tokens < len(self._padded) else tokens
        padding_ns = self._padding_ns(tokens, padded) if padded > tokens else (0,) * self.stages
        hosts = []
        for stage, layers in enumerate(self._layers):
            prepared_ns = max(announced_ns, self._launched_ns[stage]) + prepare_ns
            self._launched_ns[stage] = launched_ns = prepared_ns + int(1000 * layers * launch.layer_us)
            announced_ns = launched_ns + self._hand_ns
            hosts.append(Host(prepared_ns, launched_ns, padding_ns[stage], int(gpu_ns * self._shares[stage])))
        return hosts

    def _aftermath_ns(self, launch: Launch) -> int:
        """What eager steps before make this one longer."""
        count, aftermath = len(self.log.planned_ns), self._mode.aftermath
        if launch is self._eager:
            self._quiet_from = count + aftermath.steps
        return int(1000 * aftermath.step_us) if launch is self._mode.full and count <= self._quiet_from else 0

    def scheduling_ns(self, sequences: int) -> int:
        """How long planning a step takes the host."""
        return self._mode.schedule.ns(sequences)

    def settle(self, output_ns: int) -> None:
        """The step booked last had its output then, as a log says. So the last stage was free then, and each before it
        no later than what came after allows."""
        log, free_ns = self.log, self._free_ns
        free_ns[-1] = output_ns - self._collect_ns
        for stage in range(self.stages - 1, 0, -1):
            place = stage - self.stages
            since_ns = log.end_ns[place] - log.start_ns[place] + log.sent_ns[place - 1] - log.end_ns[place - 1]
            free_ns[stage - 1] = min(free_ns[stage - 1], free_ns[stage] - since_ns)
        self._launched_ns = [min(pair) for pair in zip(self._launched_ns, free_ns, strict=True)]

    def pause_ns(self, decodes: int) -> int:
        """See `StepTimes.pause_ns`."""
        return self._mode.update.ns(decodes) + self._mode.between.ns(decodes)

    def _launch(self, tokens: int, chunks: bool) -> Launch:
        if not tokens:
            return _NOTHING
        if tokens >= len(self._padded):
            return self._eager
        return self._mode.piecewise if chunks else self._mode.full


_NOTHING = Launch(HostTime())
"""A step without tokens is not launched."""
