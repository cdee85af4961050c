"""When the stages of a pipeline work: the GPUs alone.

Each stage runs micro-batches in the order in which they were planned, one at a time. It starts one when it is done with
the one before and, on the first stage, when that is planned and the tokens that it continues have been sampled; on the
others when the activations have come from the stage before. Sending takes time, but not that of the stages.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulator.pipeline.log import PipelineLog
from simulator.pipeline.prices import StagePrices
from simulator.power_limit import Heat

SendTime = Callable[[int], float]
"""Nanoseconds until the activations of so many tokens are at the next stage."""


class Host(NamedTuple):
    """What a stage's host has to do with a step: from when the GPU can start it, and until when it is launched; what
    padding adds to its price, and GPU time beyond that. Nanoseconds."""

    ready_ns: int = 0
    launched_ns: int = 0
    padding_ns: float = 0.0
    gpu_ns: int = 0


class PipelineTimes:
    """`StepTimes` of a pipeline; ends of steps are those of the last stage. `heats`: one a stage, or none at all."""

    hosted = False
    arrival_ns = delivery_ns = 0

    def __init__(
        self,
        prices: StagePrices,
        stages: int,
        send_ns: SendTime,
        heats: Sequence[Heat] = (),
    ) -> None:
        self.stages = stages
        self.log = PipelineLog(stages)
        self.depends_ns = 0
        """For the scheduler to say: until when the next micro-batch waits for tokens."""
        self.followed = True
        """And whether each step since the one that samples them had something to do."""
        self.host_free_ns = 0
        """When the engine's host can plan again."""
        self._stages_ns = prices.stages_ns
        self._send_ns, self._heats = send_ns, heats
        self._free_ns = [0] * stages
        self._collect_ns = 0
        self._idle_hosts = [Host()] * (stages - 1)

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
        """See `StepTimes.book`; the start is that on the first stage."""
        log, free_ns = self.log, self._free_ns
        waits_ns = self._waits_ns() if decodes else 0
        log.planned_ns.append(now_ns)
        log.depends_ns.append(waits_ns)
        log.followed.append(self.followed)
        times_ns = self._stages_ns(decodes, decode_context, longest, chunks)
        hosts = self._hosts(max(now_ns, waits_ns), now_ns, tokens, decodes + len(chunks), bool(chunks))
        sending_ns = int(self._send_ns(tokens)) if tokens else 0
        at_ns = end_ns = 0
        for stage, (price_ns, host) in enumerate(zip(times_ns, hosts, strict=True)):
            start_ns = max(at_ns, host.ready_ns, free_ns[stage])
            time_ns = self._step_ns(stage, start_ns, tokens, price_ns + host.padding_ns) + host.gpu_ns
            free_ns[stage] = end_ns = max(start_ns + time_ns, host.launched_ns)
            at_ns = end_ns + sending_ns
            log.start_ns.append(start_ns)
            log.end_ns.append(end_ns)
            log.sent_ns.append(at_ns)
        log.sent_ns[-1] = end_ns
        ends_ns.append(end_ns + self._collect_ns)
        return log.start_ns[-self.stages]

    def _waits_ns(self) -> int:
        """When the first stage has the tokens that it continues; 0 if it waits for none."""
        return self.depends_ns

    def _hosts(self, fed_ns: int, now_ns: int, tokens: int, sequences: int, chunks: bool) -> Sequence[Host]:  # noqa: ARG002
        """Of each stage, for a step planned at `now_ns` whose tokens are there at `fed_ns`."""
        return [Host(fed_ns), *self._idle_hosts]

    def _step_ns(self, stage: int, start_ns: int, tokens: int, price_ns: float) -> int:
        """How long the stage's GPU takes for a micro-batch, its power limit included."""
        if not (self._heats and tokens):
            return int(price_ns)
        return int(self._heats[stage].step_ns(start_ns, 0, tokens, price_ns))

    def pause_ns(self, decodes: int) -> int:  # noqa: ARG002 - the interface
        """See `StepTimes.pause_ns`: planning takes no time."""
        return 0
