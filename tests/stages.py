"""The `vllm` policy as step logs need it: it remembers what it planned, and it can serve several pipeline stages.

Pipeline parallelism is an extension for checking alone: it walks the running list in every step, and who rests is
never preempted.
"""

from dataclasses import dataclass, field, replace

from policies.vllm import Vllm
from simulator.core import Batch, Request, View


@dataclass(frozen=True)
class Staged(Vllm):
    """With P = `stages` > 1, P + 1 steps are in flight and who got a token in step k can get the next in step k + P.

    One stage is `Vllm` unchanged.
    """

    stages: int = 1
    planned: list[Batch | None] = field(default_factory=list, compare=False)
    """Every plan so far; one that schedules nothing counts as a step."""
    last_token: dict[Request, int] = field(default_factory=dict, compare=False)
    """The step that samples the latest token, by request."""

    @property
    def steps_in_flight(self) -> int:
        """One step for every stage and one that is planned meanwhile."""
        return super().steps_in_flight if self.stages == 1 else self.stages + 1

    def plan(self, view: View) -> Batch | None:
        """The next step, remembered."""
        batch = super().plan(view) if self.stages == 1 else self._plan_stage(view)
        self.planned.append(batch)
        return batch

    def _plan_stage(self, view: View) -> Batch | None:
        """vLLM's own walk over the requests that do not rest."""
        step = len(self.planned)
        decoding = view.decoding_requests()
        resting = {request for request in decoding if self.last_token[request] > step - self.stages}
        seen = View(view.block_size, view.total_blocks, view.decodes, view.waiting)
        seen.free_blocks, seen.prefilling = view.free_blocks, view.prefilling
        seen.running = {request: None for request in view.running if request not in resting}
        batch = replace(self, max_num_seqs=self.max_num_seqs - len(resting))._walk(seen)
        if batch is not None:
            ends = [request for request, tokens in batch.chunks if request.computed + tokens == request.known]
            self.last_token.update(dict.fromkeys([*(batch.decodes or ()), *ends], step))
        return batch
