"""Random systems of two pools, and what becomes of them in the package and in the slow system."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hypothesis import strategies as st

from simulator.core import Request
from simulator.costs import StepCosts
from simulator.disaggregation.link import Link
from simulator.disaggregation.log import PooledRun
from simulator.disaggregation.system import Pool, simulate_pools
from simulator.metrics.tokens import token_times_ns
from simulator.policy import Policy
from simulator.routers import make_router
from simulator.runlog import ITERATION_COLUMNS, STATUS_NAMES
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.reference import Job, Reference
from tests.reference_pools import Pools, Wire
from tests.workloads import COSTS, EVEN_COSTS, OPTIONS, POLICIES, QUARREL, REFERENCES, conversations, pools, workloads

Workload = list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class Side:
    """One pool."""

    policy: str
    options: dict[str, Any]
    replicas: int
    block_size: int
    blocks: int
    costs: StepCosts

    def made(self) -> Policy:
        return POLICIES[self.policy](**self.options)

    def pool(self, times: Callable[[Policy], Any] | None = None) -> Pool:
        """For the package."""
        policy = self.made()
        clocks = [times(policy) if times else GpuTimes(self.costs) for _ in range(self.replicas)]
        return Pool(policy, clocks, self.block_size, self.blocks, make_router("round-robin"))

    def references(self) -> list[Reference]:
        """For the slow system."""
        options = asdict(self.made())
        kind = REFERENCES[self.policy]
        return [kind(options, self.costs.step_ns, self.block_size, self.blocks) for _ in range(self.replicas)]


@dataclass(frozen=True)
class PoolCase:
    """`fixed_ns` and `token_ns` are of a message on the link."""

    prefill: Side
    decode: Side
    workload: Workload
    texts: list[str]
    fixed_ns: int
    token_ns: int
    layers: int
    layerwise: bool

    def whole_ns(self, tokens: int) -> int:
        return self.fixed_ns + self.token_ns * tokens

    def layer_ns(self, tokens: int) -> int:
        return self.fixed_ns + self.token_ns * tokens // self.layers

    def requests(self) -> Iterator[Request]:
        for index, facts in enumerate(self.workload):
            request = Request(index, *facts)
            text, size = self.texts[index], self.prefill.block_size
            request.keys = [text[:end] for end in range(size, len(text) + 1, size)]
            yield request


@st.composite
def sides(draw: st.DrawFn, workload: Workload, *, decode: bool, quarrel: bool = False) -> Side:
    """A pool for `workload`, of any policy; from starved to ample memory. In a `quarrel` vLLM begins more prompts than
    fit together."""
    policy = (
        "vllm" if quarrel else draw(st.sampled_from(["vllm", "vllm", "sarathi", "orca", "simple_chunking", "vllm_v0"]))
    )
    options = dict(draw(OPTIONS[policy]))
    if decode and "enable_prefix_caching" in options:
        options["enable_prefix_caching"] = False
    if decode and policy == "vllm_v0":  # the slow one's queue has no decode that comes behind a prompt in chunks
        options["enable_chunked_prefill"] = False
    if quarrel:
        options |= QUARREL | {"max_num_seqs": 8, "max_num_batched_tokens": draw(st.integers(8, 96))}
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    reserved = options["max_model_len"] if options.get("reservation") == "max_model_len" else 0
    lengths = [max(prompt + output * decode, reserved) for _, prompt, output, _ in workload]
    blocks = draw(pools(lengths, block_size, quarrel))
    costs = draw(st.sampled_from([COSTS, COSTS, EVEN_COSTS]))
    return Side(policy, options, draw(st.integers(1, 3)), block_size, blocks, costs)


@st.composite
def pool_cases(draw: st.DrawFn) -> PoolCase:
    """Both pools and the link between them, from one that takes no time to one that is all that counts."""
    workload = draw(workloads())
    quarrel = draw(st.integers(0, 4)) == 0
    if quarrel:
        longest = max(prompt for _, prompt, _, _ in workload)
        workload = [(at // 9, (prompt + longest) // 2, out, urgency) for at, prompt, out, urgency in workload]
    prefill = draw(sides(workload, decode=False, quarrel=quarrel))
    texts = [""] * len(workload)
    if prefill.options.get("enable_prefix_caching"):
        texts = draw(conversations(workload))
        workload = [(at, len(text), out, urgency) for text, (at, _, out, urgency) in zip(texts, workload, strict=True)]
    decode = draw(sides(workload, decode=True))
    fixed, each = draw(st.sampled_from([0, 0, 10, 1000, 5000])), draw(st.sampled_from([0, 1, 10, 100]))
    layers, layerwise = draw(st.sampled_from([1, 2, 3, 8])), draw(st.booleans())
    return PoolCase(prefill, decode, workload, texts, fixed, each, layers, layerwise)


def run_fast(
    case: PoolCase,
    watch: Callable[[Scheduler], None] = lambda _: None,
    prefill: Pool | None = None,
    decode: Pool | None = None,
) -> PooledRun:
    """The package's system; `prefill` and `decode` take the place of the case's."""

    def on_step(scheduler: Scheduler) -> None:
        assert scheduler.iterations < 100_000, "the run makes no progress"
        watch(scheduler)

    return simulate_pools(
        case.requests(),
        prefill or case.prefill.pool(),
        decode or case.decode.pool(),
        lambda: Link(case.whole_ns, case.layer_ns, case.layers),
        layerwise=case.layerwise,
        prefixes=case.prefill.options.get("enable_prefix_caching", False),
        on_step=on_step,
    )


def outcome(run: PooledRun, requests: int) -> dict[str, Any]:
    """What both must agree on, from the package."""
    names = ("status", "preemptions", "cached")
    rows = sorted(zip(*(run.log.requests[name].tolist() for name in ("request", *names)), strict=True))
    assert [index for index, *_ in rows] == list(range(requests))
    sent = run.transfers
    moments = zip(
        *(moment.tolist() for moment in (sent.request, sent.ready_ns, sent.room_ns, sent.landed_ns)), strict=True
    )
    return {
        "times": token_times_ns(run.log, requests),
        "requests": [(STATUS_NAMES[status], *counts) for _, status, *counts in rows],
        "sent": sorted(moments),
        "steps": [
            list(zip(*(replica.iterations[name].tolist() for name in ITERATION_COLUMNS), strict=True))
            for replica in run.log.replicas
        ],
    }


def slow_system(case: PoolCase) -> tuple[Pools, list[Job]]:
    """The slow system, after the run."""
    limit = case.decode.made().promises.sequence_limit
    decodes = case.decode.references()
    for engine in decodes:
        engine.caching = False
    prefills = case.prefill.references()

    def reserves(engine: Reference, job: Job) -> int:
        if case.decode.policy == "orca":
            return engine.slots(job)  # type: ignore[attr-defined,no-any-return]
        return 0 if case.decode.policy == "vllm" else job.known

    wires = [Wire(case.whole_ns, case.layer_ns, case.layers) for _ in prefills]
    system = Pools(prefills, decodes, wires, layerwise=case.layerwise, sequences=limit, reserves=reserves)
    jobs = [Job(index, *facts, text) for index, (facts, text) in enumerate(zip(case.workload, case.texts, strict=True))]
    return system, system.run(jobs)


def slow_outcome(case: PoolCase) -> dict[str, Any]:
    """The same from the slow system."""
    system, jobs = slow_system(case)
    return {
        "times": [job.times for job in jobs],
        "requests": [(job.status, job.preemptions, job.cached) for job in jobs],
        "sent": sorted((p.job.index, p.ready, p.room, p.landed) for p in system.passengers),
        "steps": [station.engine.steps for station in [*system.prefills, *system.decodes]],
    }
