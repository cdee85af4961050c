"""A scheduler for vLLM that logs every engine step: `vllm serve ... --scheduler-cls profiler.vllm_steps.StepLogger`.

It schedules exactly as vLLM's own: the class is a subclass of `Scheduler`, or of `AsyncScheduler` where vLLM schedules
asynchronously, and only looks at what goes in and comes out. docs/log-vllm-steps.md tells how to use it and names the
vLLM source of each assumption. vLLM is imported when the first scheduler is made, nothing else that is heavy at all.
"""

import importlib
import time
from collections import deque
from typing import Any

from profiler.step_log import StepLog, limit_from_environment, logger, path_from_environment
from simulator.errors import InputError

BASES = {
    "SyncStepLogger": ("vllm.v1.core.sched.scheduler", "Scheduler"),
    "AsyncStepLogger": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
}
OVERRIDDEN = ("add_request", "schedule", "_preempt_request", "update_from_output", "shutdown")


class Recorder:
    """Turns what a scheduler takes and returns into rows of a log. Requests are numbered in the order they come."""

    def __init__(self, log: StepLog) -> None:
        self.log = log
        self.preempted: list[str] = []
        """Request ids that the running `schedule()` preempted, in order."""
        self._numbers: dict[str, int] = {}
        self._requests = 0
        self._steps = 0
        self._prefilling: dict[str, int] = {}
        """Of the requests whose prompt is not computed: how many tokens were known at their admission."""
        self._in_flight: deque[tuple[Any, str]] = deque()
        self._zero_ns = time.perf_counter_ns()

    def number(self, request_id: str) -> int:
        """The request's number, the next free one for a new request."""
        number = self._numbers.get(request_id)
        if number is None:
            number = self._numbers[request_id] = self._requests
            self._requests += 1
        return number

    def seconds(self, clock_ns: int) -> str:
        """A time of the log: seconds since the scheduler was made."""
        return f"{(clock_ns - self._zero_ns) / 1e9:.6f}"

    def scheduled(
        self, output: Any, requests: dict[str, Any], start_ns: int, end_ns: int, waiting: int, running: int
    ) -> None:
        """Remember a step: a `SchedulerOutput`, the scheduler's requests by id, and the queue lengths before it."""
        for request_id in self.preempted:
            self._prefilling.pop(request_id, None)
        composition = self._composition(output, requests)
        preempted = " ".join(str(self.number(request_id)) for request_id in self.preempted)
        for request_id in output.finished_req_ids:
            self._numbers.pop(request_id, None)
            self._prefilling.pop(request_id, None)
        start = f"{self._steps},{self.seconds(start_ns)},{self.seconds(end_ns)}"
        self._steps += 1
        self._in_flight.append((output, f"{start},{{}},{{}},{waiting},{running},{composition},{preempted}"))

    def updated(self, output: Any, ready_ns: int, end_ns: int) -> None:
        """Log the step of this `SchedulerOutput`; steps before it that never had an output are left out."""
        while self._in_flight:
            scheduled, row = self._in_flight.popleft()
            if scheduled is output:
                self.log.add(row.format(self.seconds(ready_ns), self.seconds(end_ns)))
                return

    def _composition(self, output: Any, requests: dict[str, Any]) -> str:
        """The columns num_decodes to prefills."""
        cached = output.scheduled_cached_reqs
        contexts: list[int] = cached.num_computed_tokens
        admitted = [new.req_id for new in output.scheduled_new_reqs] + list(cached.resumed_req_ids)
        if not admitted and not self._prefilling and output.total_num_scheduled_tokens == len(contexts):
            return f"{len(contexts)},{sum(contexts) + len(contexts)},{max(contexts, default=-1) + 1},"
        for request_id in admitted:
            self._prefilling[request_id] = requests[request_id].num_tokens  # schedule() itself leaves it as it was
        before = dict(zip(cached.req_ids, contexts, strict=True))
        before |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        decodes, chunks = [], []
        for request_id, tokens in output.num_scheduled_tokens.items():
            context = before[request_id]
            prompt = self._prefilling.get(request_id)
            if prompt is None and tokens == 1:
                decodes.append(context + 1)
                continue
            chunks.append(f"{self.number(request_id)}:{context}:{tokens}")
            if prompt is not None and context + tokens >= prompt:
                del self._prefilling[request_id]
        return f"{len(decodes)},{sum(decodes)},{max(decodes, default=0)},{' '.join(chunks)}"


def logging_scheduler(base: type[Any]) -> type[Any]:
    """The subclass of a vLLM scheduler that logs its steps; InputError for a class without the methods it looks at."""
    missing = [name for name in OVERRIDDEN if not hasattr(base, name)]
    if missing:
        raise InputError(f"this vLLM's {base.__name__} has no {', '.join(missing)}: its steps cannot be logged")

    class LoggingScheduler(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
            if config.speculative_config is not None:
                raise InputError("the step log has no columns for draft tokens: log without speculative decoding")
            parallel = config.parallel_config
            path = path_from_environment(parallel.data_parallel_rank if parallel.data_parallel_size > 1 else None)
            limit_bytes = limit_from_environment()
            super().__init__(*args, **kwargs)
            self._chunkwise = Recorder(StepLog(path, limit_bytes))
            logger.info("logging the steps of %s to %s; its second 0 is now", base.__name__, path)

        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            if self._chunkwise.log.open:
                self._chunkwise.number(request.request_id)
            return super().add_request(request, *args, **kwargs)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            recorder = self._chunkwise
            if not recorder.log.open:
                return super().schedule(*args, **kwargs)
            recorder.preempted.clear()
            # newer versions keep requests that cannot be scheduled yet (grammars, remote KV) in a queue of their own
            waiting = len(self.waiting) + len(getattr(self, "skipped_waiting", ()))
            running = len(self.running)
            start_ns = time.perf_counter_ns()
            output = super().schedule(*args, **kwargs)
            end_ns = time.perf_counter_ns()
            try:
                recorder.scheduled(output, self.requests, start_ns, end_ns, waiting, running)
            except Exception:  # whatever another version's output lacks: a server is worth more than its log
                recorder.log.open = False
                logger.exception("step log %s ends here: not the scheduler output it knows", recorder.log.path)
            return output

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            self._chunkwise.preempted.append(request.request_id)
            return super()._preempt_request(request, *args, **kwargs)

        def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            ready_ns = time.perf_counter_ns()
            outputs = super().update_from_output(scheduler_output, *args, **kwargs)
            self._chunkwise.updated(scheduler_output, ready_ns, time.perf_counter_ns())
            return outputs

        def shutdown(self) -> Any:
            self._chunkwise.log.close()
            return super().shutdown()

    return LoggingScheduler


def __getattr__(name: str) -> type[Any]:
    """`SyncStepLogger` and `AsyncStepLogger`, made when they are first asked for."""
    if name not in BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base = BASES[name]
    try:
        made = logging_scheduler(getattr(importlib.import_module(module), base))
    except ImportError as error:
        raise InputError(f"vLLM's scheduler cannot be imported ({error}); the step logger runs inside vLLM") from error
    made.__name__ = made.__qualname__ = name
    globals()[name] = made
    return made


class StepLogger:
    """What `--scheduler-cls` names: makes an `AsyncStepLogger` where vLLM's configuration schedules asynchronously, as
    vLLM itself chooses its class, and a `SyncStepLogger` elsewhere."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The scheduler, from the arguments of vLLM's own."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        name = "AsyncStepLogger" if config.scheduler_config.async_scheduling else "SyncStepLogger"
        made = globals().get(name) or __getattr__(name)
        return made(*args, **kwargs)
