"""A stand-in for vLLM's V1 scheduler, small and first come, first served, with the names that the step logger looks at.

After vLLM 0.23: `vllm/v1/core/sched/scheduler.py` (`Scheduler`), `async_scheduler.py` (`AsyncScheduler`), `output.py`
(`SchedulerOutput`, `CachedRequestData`, `NewRequestData`). No token values: a step's output is that there is one.
"""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace


@dataclass(eq=False)
class Request:
    """`vllm.v1.request.Request`; `all_tokens` counts prompt and generated tokens."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_tokens: int = 0
    preempted: bool = False
    held: int = 0

    def __post_init__(self):
        self.num_tokens = self.num_prompt_tokens


@dataclass
class Cached:
    """`CachedRequestData`."""

    req_ids: list = field(default_factory=list)
    resumed_req_ids: set = field(default_factory=set)
    num_computed_tokens: list = field(default_factory=list)


def config(**changes):
    """The parts of a `VllmConfig` that matter; blocks of 4 tokens, 8 tokens a step, 5 blocks."""
    values = {
        "asynchronous": False,
        "blocks": 5,
        "ranks": 1,
        "rank": 0,
        "draft": None,
        "resumed_as_new": False,
        **changes,
    }
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=values["asynchronous"], max_num_batched_tokens=8),
        parallel_config=SimpleNamespace(data_parallel_size=values["ranks"], data_parallel_rank=values["rank"]),
        cache_config=SimpleNamespace(num_gpu_blocks=values["blocks"] + 1),
        speculative_config=values["draft"],
        use_v2_model_runner=values["resumed_as_new"],
    )


class Scheduler:
    """Of `scheduler.py`; without prefix caching."""

    def __init__(
        self,
        vllm_config,
        kv_cache_config,
        structured_output_manager,
        block_size,
        mm_registry=None,
        include_finished_set=False,
        log_stats=False,
    ):
        self.budget = vllm_config.scheduler_config.max_num_batched_tokens
        self.free = vllm_config.cache_config.num_gpu_blocks - 1  # block 0 is the null block
        self.use_v2_model_runner = vllm_config.use_v2_model_runner
        self.block_size = block_size
        self.requests, self.waiting, self.running = {}, [], []
        self.finished_req_ids = set()
        self.is_shut_down = False

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self, throttle_prefills=False):
        scheduled, before, new, resumed, victims = {}, {}, [], [], []
        budget, index = self.budget, 0
        while index < len(self.running) and budget:
            request = self.running[index]
            index += 1
            computed, unseen = request.num_computed_tokens, request.num_output_placeholders
            if unseen and computed + 2 - unseen >= request.num_prompt_tokens + request.max_tokens:
                continue
            tokens = min(request.num_tokens + unseen - computed, budget)
            if not tokens:
                continue
            while self._blocks(request, tokens) > self.free:
                victims.append(self.running.pop())
                self._preempt_request(victims[-1], 0.0)
                if victims[-1] is request:
                    break
            if request.preempted:
                break
            self._take(request, tokens, scheduled, before)
            budget -= tokens
        while self.waiting and budget and not victims:
            request = self.waiting[0]
            if self._blocks(request, request.num_tokens) > self.free:
                break
            self.running.append(self.waiting.pop(0))
            (resumed if request.preempted and not self.use_v2_model_runner else new).append(request.request_id)
            request.preempted = False
            tokens = min(request.num_tokens, budget)
            self._take(request, tokens, scheduled, before)
            budget -= tokens
        cached = [name for name in scheduled if name not in new]
        output = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=before[name]) for name in new],
            scheduled_cached_reqs=Cached(cached, set(resumed), [before[name] for name in cached]),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids={request.request_id for request in victims},
        )
        self._update_after_schedule(output)
        return output

    def _blocks(self, request, tokens):
        return -(-(request.num_computed_tokens + tokens) // self.block_size) - request.held

    def _take(self, request, tokens, scheduled, before):
        blocks = self._blocks(request, tokens)
        request.held += blocks
        self.free -= blocks
        scheduled[request.request_id] = tokens
        before[request.request_id] = request.num_computed_tokens

    def _preempt_request(self, request, timestamp):
        self.free += request.held
        request.held = request.num_computed_tokens = 0
        request.preempted = True
        self.waiting.insert(0, request)

    def _update_after_schedule(self, scheduler_output):
        for name, tokens in scheduler_output.num_scheduled_tokens.items():
            self.requests[name].num_computed_tokens += tokens
        scheduler_output.samples = [
            name
            for name in scheduler_output.num_scheduled_tokens
            if self.requests[name].num_computed_tokens
            >= self.requests[name].num_tokens + self.requests[name].num_output_placeholders
        ]
        self.finished_req_ids = set()

    def update_from_output(self, scheduler_output, model_runner_output):
        for name in scheduler_output.samples:
            request = self.requests[name]
            request.num_tokens += 1
            request.num_output_placeholders = max(0, request.num_output_placeholders - 1)
            if request.num_tokens == request.num_prompt_tokens + request.max_tokens:
                self.free += request.held
                (self.waiting if request.preempted else self.running).remove(request)
                del self.requests[name]
                self.finished_req_ids.add(name)
        return {}

    def shutdown(self):
        self.is_shut_down = True


class AsyncScheduler(Scheduler):
    """Of `async_scheduler.py`: a scheduled token is a placeholder until its output is there."""

    def _update_after_schedule(self, scheduler_output):
        super()._update_after_schedule(scheduler_output)
        for name in scheduler_output.samples:
            self.requests[name].num_output_placeholders += 1


def modules():
    """What `sys.modules` must hold for the stand-in to be vLLM."""
    names = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched")
    made = {name: ModuleType(name) for name in names}
    for name, held in (("scheduler", Scheduler), ("async_scheduler", AsyncScheduler)):
        module = ModuleType(f"vllm.v1.core.sched.{name}")
        setattr(module, held.__name__, held)
        made[module.__name__] = module
    return made


def install():
    """Be vLLM in this process."""
    sys.modules.update(modules())


def made_by_engine(scheduler_cls, vllm_config):
    """As `EngineCore.__init__` of `vllm/v1/engine/core.py` makes its scheduler."""
    return scheduler_cls(
        vllm_config=vllm_config,
        kv_cache_config=None,
        structured_output_manager=None,
        include_finished_set=False,
        log_stats=True,
        block_size=4,
    )


def serve(scheduler, arrivals, in_flight):
    """Run the engine's loop, `EngineCore.step` with 1 step in flight and `step_with_batch_queue` with more.

    `arrivals`: (before which schedule(), prompt tokens, output tokens), in order.
    """
    queue, coming, step = [], list(enumerate(arrivals)), 0
    while coming or scheduler.requests or scheduler.finished_req_ids or queue:
        while coming and coming[0][1][0] <= step:
            number, (_, prompt, output) = coming.pop(0)
            scheduler.add_request(Request(f"cmpl-{number:02x}", prompt, output))
        if scheduler.requests or (in_flight > 1 and scheduler.finished_req_ids):
            queue.append(scheduler.schedule(False))
            step += 1
            if len(queue) < in_flight:
                continue
        if not queue:
            return
        scheduler.update_from_output(queue.pop(0), None)
