"""Replays recorded decisions of TensorRT-LLM's scheduler, which has two lists of its own and two stages.

Recorded are besides the usual: who became active (`act`, `"="` where that is who arrived), how many the capacity stage
let through (`fit`), and how many of those scheduled are prompts (`nctx`). `run` and `wait` count the active and those
before them. Where the engine would stop with an assertion (a whole prompt above the token budget) the recording ends
with `assert`; the simulator would have rejected the request, and the place is compared.
"""

from policies.tensorrt_llm import TensorrtLlm
from simulator.core import Batch, Request, View
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.golden_files import Record, Scenario, Verdict
from tests.golden_replay import costs_of, every_difference, fates, follow

UNLIMITED = 10**9


def policy_of(config: Record) -> TensorrtLlm:
    """The policy with the recorded configuration."""
    return TensorrtLlm(
        capacity_scheduler_policy=config["capacity_policy"],
        enable_chunked_context=config["chunking"] is not None,
        context_chunking_policy=config["chunking"] or "FIRST_COME_FIRST_SERVED",
        chunk_unit_size=config["chunk_unit_size"],
        max_batch_size=config["max_batch_size"],
        max_num_tokens=config["max_num_tokens"],
        max_num_requests=config["max_num_requests"],
        max_num_active_requests=config["max_num_active_requests"] or UNLIMITED,
        max_seq_len=config["max_seq_len"],
        tokens_per_block=config["tokens_per_block"],
    )


class Replay:
    """One scenario through the scheduler, a recorded step at a time."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.config
        self.policy = policy_of(config)
        self.costs = costs_of(scenario)
        self.scheduler = Scheduler(
            self.policy,
            GpuTimes(self.costs),
            block_size=config["tokens_per_block"],
            num_blocks=config["num_blocks"],
            give_up_on_impossible=False,
        )
        self.planned: Batch | None = None
        self.scheduler._plan = self._capture
        self.requests = [Request(each["id"], each["arr"], each["p"], each["o"]) for each in scenario.requests]
        self.coming = self.requests[::-1]
        self.active: list[Request] = []
        self.queue: list[Request] = []
        self.now = self.steps = 0

    def _capture(self, view: View) -> Batch | None:
        self.planned = self.policy.plan(view)
        return self.planned

    @property
    def over(self) -> bool:
        """Whether every request has arrived and ended."""
        return not self.coming and not self.scheduler.unfinished

    def step(self) -> Record:
        """Schedule and complete the next step; what happened, in the recorded form."""
        scheduler, view = self.scheduler, self.scheduler.view
        record: Record = {"i": self.steps, "add": self._arrivals(), "act": self._activate(), "t": self.now}
        view.decode_blocks = scheduler.decodes.blocks_to_open()
        fit = self.policy.let_through(view)[0]
        if self._asserts(view, fit):
            return record | {"dt": 0, "assert": 1}
        before = {request: view.context_tokens(request) for request in self.active}
        unstarted = {request for request in self.active if request.state == Request.WAITING}
        decoding = view.decoding_requests()
        end_ns = scheduler.schedule(self.now)
        batch = self.planned or Batch(decodes=())
        decodes = decoding if batch.decodes is None else batch.decodes
        running = [request for request in fit if request in decodes and request not in batch.preempted]
        parts = [*batch.chunks, *((request, 1) for request in running)]
        begun = [request for request, _ in batch.chunks if request in unstarted]
        end_ns = self.now + self.costs.fixed_ns if end_ns is None else end_ns
        record |= {
            "dt": end_ns - self.now,
            "s": [request.index if tokens == 1 else [request.index, tokens] for request, tokens in parts],
            "nctx": len(batch.chunks) or [],
            "new": [request.index for request in begun if not request.preemptions],
            "res": [request.index for request in begun if request.preemptions],
            "pre": [request.index for request in batch.preempted],
            "fit": len(fit),
            "tok": sum(tokens for _, tokens in parts),
            "ctx": sum(before[request] + tokens for request, tokens in parts),
            "run": len(self.active),
            "wait": len(self.queue),
            "free": view.free_blocks,
        }
        finishing = scheduler.complete() if scheduler.under_way else ()
        self.active = [request for request in self.active if request not in finishing]
        record["fin"] = [request.index for request, _ in parts if request in finishing]
        record["free2"] = view.free_blocks
        self.now = end_ns
        self.steps += 1
        return record

    def _arrivals(self) -> list[int]:
        if not self.scheduler.unfinished:
            self.now = max(self.now, self.coming[-1].arrival_ns)
        added = []
        while self.coming and self.coming[-1].arrival_ns <= self.now:
            self.queue.append(self.coming.pop())
            self.scheduler.arrive(self.queue[-1])
            added.append(self.queue[-1].index)
        return added

    def _activate(self) -> list[int]:
        places = self.policy._most_active(stages=1) - len(self.active)
        activated, self.queue = self.queue[:places], self.queue[places:]
        self.active += activated
        return [request.index for request in activated]

    def _asserts(self, view: View, fit: list[Request]) -> bool:
        """Whether the engine's token stage comes to a whole prompt that no step can hold."""
        if self.policy.enable_chunked_context:
            return False
        batch = self.policy.plan(view) or Batch(decodes=())
        ran = {request for request, _ in batch.chunks}
        ran |= set(view.decoding_requests() if batch.decodes is None else batch.decodes)
        blocked = next((request for request in fit if request not in ran), None)
        in_reach = blocked is not None and len(ran) < self.policy.max_batch_size
        return in_reach and blocked.state == Request.WAITING and blocked.known > self.policy.max_num_tokens

    def summary(self, recorded: Record) -> Record:
        """The fate of every request in the recorded form. Ends the run: what has not finished never will."""
        # Whether an unfinished run stalled or was cut off only the recorder knows; an assertion was compared.
        status = "ok" if self.over else "unfinished" if recorded["status"] == "ok" else recorded["status"]
        self.scheduler.stall("the recording ends")
        run, count = self.scheduler.logged_run(), len(self.requests)
        return {
            "status": status,
            "steps": self.steps,
            "end_t": self.now,
            "num_preemptions": self.scheduler.preemptions,
            **fates(run, count),
            "preempt": [request.preemptions for request in self.requests],
        }


def replay(scenario: Scenario) -> Verdict:
    """Compare every step and then the summary, up to the first difference."""
    return follow(scenario, Replay(scenario), _difference)


def _difference(recorded: Record, simulated: Record) -> str | None:
    """The fields in which they differ, or None; `=` stands for the same requests as in `add`."""
    if recorded.get("act") == "=":
        recorded = recorded | {"act": recorded.get("add", [])}
    return every_difference(recorded, simulated)
