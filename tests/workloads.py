"""Random small workloads and options that bring the engines into every corner, and the two engines side by side."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from policies.orca import Orca
from policies.sarathi import Sarathi
from policies.simple_chunking import SimpleChunking
from policies.static import Static
from policies.tensorrt_llm import TensorrtLlm
from policies.tgi import Tgi
from policies.vllm import Vllm
from policies.vllm_v0 import VllmV0
from simulator.core import Request
from simulator.costs import DecodePiece, LinearCosts, StepCosts
from simulator.engine import simulate
from simulator.engines.times import EngineTimes
from simulator.metrics.tokens import token_times_ns
from simulator.pipeline.layers import split_layers
from simulator.pipeline.prices import stage_prices
from simulator.pipeline.times import PipelineTimes
from simulator.policy import Policy
from simulator.runlog import ITERATION_COLUMNS, STATUS_NAMES, LoggedRun
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes, StepTimes
from tests.reference import Job, Reference
from tests.reference_host import Host, HostClock
from tests.reference_policies import OrcaReference, SarathiReference, VllmReference
from tests.reference_sarathi import SimpleChunkingReference, StaticReference, VllmV0Reference
from tests.reference_tensorrt_llm import TensorrtLlmReference
from tests.reference_tgi import TgiReference

COSTS = LinearCosts(fixed_ns=1000, per_token_ns=10, per_context_token_ns=1)
EVEN_COSTS = LinearCosts(fixed_ns=1000)
"""Steps end when requests arrive."""


class UnlikeCosts:
    """Steps take the longer, by steps, the further the longest context of the decodes is above their mean."""

    measured_context = float("inf")

    def step_ns(self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]) -> int:
        tokens = decodes + sum(new for _, new in chunks)
        return 1000 + 10 * tokens + decode_context + 317 * self._spread(decodes, decode_context, longest)

    def decode_piece(self, decodes: int, decode_context: int, longest: int) -> DecodePiece:
        spread = self._spread(decodes, decode_context, longest)
        steps = 1
        while steps < 40 and self._spread(decodes, decode_context + steps * decodes, longest + steps) == spread:
            steps += 1
        return 1000 + 10 * decodes + 317 * spread, 1, decode_context + steps * decodes

    def token_ns(self, tokens: int) -> float:
        return 10 * tokens

    def count_beyond(self, decodes: int, decode_context: int, steps: int) -> None:
        """Nothing is."""

    @staticmethod
    def _spread(decodes: int, decode_context: int, longest: int) -> int:
        return longest * decodes * 8 // decode_context if decodes else 0


UNLIKE_COSTS = UnlikeCosts()

POLICIES = {
    "vllm": Vllm,
    "sarathi": Sarathi,
    "orca": Orca,
    "static": Static,
    "simple_chunking": SimpleChunking,
    "vllm_v0": VllmV0,
    "tensorrt_llm": TensorrtLlm,
    "tgi": Tgi,
}
REFERENCES: dict[str, type[Reference]] = {
    "vllm": VllmReference,
    "sarathi": SarathiReference,
    "orca": OrcaReference,
    "static": StaticReference,
    "simple_chunking": SimpleChunkingReference,
    "vllm_v0": VllmV0Reference,
    "tensorrt_llm": TensorrtLlmReference,
    "tgi": TgiReference,
}


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(arrival_ns, prompt, output, priority), arrivals sorted; bursts, ties and idle gaps included."""
    count = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 700, 1000, 1010, 3000, 40000]), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(1, draw(st.sampled_from([10, 70, 70, 200]))), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, draw(st.sampled_from([3, 40, 40]))), min_size=count, max_size=count))
    urgency = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    arrivals = [sum(gaps[: i + 1]) for i in range(count)]
    return list(zip(arrivals, prompts, outputs, urgency, strict=True))


@st.composite
def vllm_options(draw: st.DrawFn) -> dict[str, Any]:
    sequences = draw(st.integers(1, 8))
    length = draw(st.sampled_from([40, 64, 120, 4096]))
    chunked = draw(st.booleans())
    budget = draw(st.integers(sequences, 96)) if chunked else max(length, sequences)
    return {
        "max_num_batched_tokens": budget,
        "max_num_seqs": sequences,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 7, 20])),
        "enable_chunked_prefill": chunked,
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "enable_prefix_caching": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "max_model_len": length,
    }


@st.composite
def sarathi_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "chunk_size": draw(st.integers(1, 80)),
        "max_num_seqs": draw(st.sampled_from([1, 2, 4, 8, 14, 14])),
        "tile_size": draw(st.sampled_from([0, 4, 16, 32])),
        "max_prefills_per_batch": draw(st.integers(0, 2)),
    }


@st.composite
def orca_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "max_batch_size": draw(st.integers(1, 8)),
        "reservation": draw(st.sampled_from(["request", "max_model_len"])),
        "max_model_len": draw(st.sampled_from([60, 110, 250])),
        "max_prefills_per_batch": draw(st.integers(0, 2)),
    }


@st.composite
def static_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "max_batch_size": draw(st.integers(1, 8)),
        "max_model_len": draw(st.sampled_from([60, 110, 250])),
        "padding": draw(st.booleans()),
    }


@st.composite
def simple_chunking_options(draw: st.DrawFn) -> dict[str, Any]:
    return {"chunk_size": draw(st.integers(1, 80)), "max_num_seqs": draw(st.sampled_from([1, 2, 4, 8, 14, 14]))}


@st.composite
def vllm_v0_options(draw: st.DrawFn) -> dict[str, Any]:
    sequences, chunked = draw(st.sampled_from([1, 2, 4, 8, 14, 14])), draw(st.booleans())
    return {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": draw(st.integers(sequences, 80) if chunked else st.integers(20, 250)),
        "max_model_len": draw(st.sampled_from([60, 120, 4096])),
        "enable_chunked_prefill": chunked,
    }


@st.composite
def tgi_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "waiting_served_ratio": draw(st.sampled_from([0.0, 0.3, 0.7, 1.2, 3.0])),
        "max_waiting_tokens": draw(st.sampled_from([0, 1, 3, 20, 1000])),
        "max_batch_prefill_tokens": draw(st.integers(1, 150)),
        "max_batch_total_tokens": draw(st.sampled_from([None, None, 200])),
        "max_batch_size": draw(st.sampled_from([None, 1, 2, 5])),
        "max_concurrent_requests": draw(st.sampled_from([None, None, None, 3])),
        "prefill_chunking": draw(st.booleans()),
        "prefix_caching": draw(st.booleans()),
        "max_new_tokens": draw(st.sampled_from([None, None, 10])),
        "speculate": draw(st.sampled_from([0, 0, 2])),
    }


@st.composite
def tensorrt_llm_options(draw: st.DrawFn) -> dict[str, Any]:
    options = {
        "capacity_scheduler_policy": draw(
            st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "MAX_UTILIZATION", "STATIC_BATCH"])
        ),
        "enable_chunked_context": draw(st.booleans()),
        "context_chunking_policy": draw(st.sampled_from(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"])),
        "chunk_unit_size": draw(st.sampled_from([None, 1, 4, 7, 16])),
        "max_batch_size": draw(st.sampled_from([1, 2, 4, 8, 14])),
        "max_num_tokens": draw(st.one_of(st.integers(1, 40), st.integers(20, 120), st.just(250))),
        "max_num_requests": draw(st.sampled_from([None, None, 1, 3, 12])),
        "max_num_active_requests": draw(st.sampled_from([None, None, 2, 5, 20])),
        "max_seq_len": draw(st.sampled_from([60, 120, 4096])),
        "max_tokens": draw(st.sampled_from([None, None, 10, 60])),
        "tokens_per_block": draw(st.sampled_from([4, 32])),
    }
    overtaking = draw(st.integers(0, 3)) == 0
    return options | (OVERTAKING if overtaking else {})


OVERTAKING = {
    "capacity_scheduler_policy": "MAX_UTILIZATION",
    "enable_chunked_context": True,
    "chunk_unit_size": 16,
    "max_batch_size": 14,
    "max_num_tokens": 17,
    "max_num_requests": None,
    "max_num_active_requests": None,
    "max_seq_len": 4096,
}
"""Beside two decodes only the ends of prompts are computed: who has less left starts before who came earlier, and is
paused for that one."""

QUARREL = {
    "scheduling_policy": "priority",
    "long_prefill_token_threshold": 7,
    "scheduler_reserve_full_isl": False,
    "enable_chunked_prefill": True,
    "max_model_len": 4096,
}
"""Many prompts are begun that do not fit together and take memory from each other, some of them for ever."""

OPTIONS = {
    "vllm": vllm_options(),
    "sarathi": sarathi_options(),
    "orca": orca_options(),
    "static": static_options(),
    "simple_chunking": simple_chunking_options(),
    "vllm_v0": vllm_v0_options(),
    "tensorrt_llm": tensorrt_llm_options(),
    "tgi": tgi_options(),
}
ON_PIPELINES = [name for name in OPTIONS if POLICIES[name].on_pipelines]


@dataclass(frozen=True)
class Case:
    """A run: `texts` are what the requests' tokens say, one character a token, as far as it can be found again."""

    policy: str
    options: dict[str, Any]
    workload: list[tuple[int, int, int, int]]
    block_size: int
    blocks: int
    texts: list[str]
    costs: StepCosts
    host: Host | None = None
    layers: tuple[int, ...] = (1,)
    send_ns: int = 0

    def times(self, policy: Policy) -> StepTimes:
        """The package's clock."""
        if len(self.layers) > 1:
            stages = split_layers(sum(self.layers), len(self.layers), self.layers)
            return PipelineTimes(stage_prices(self.costs, stages), len(stages), self.sending_ns)
        if self.host is None:
            return GpuTimes(self.costs)
        mode, captured, layers = self.host.mode, self.host.captured, self.host.layers
        ways = {"in_flight": policy.steps_in_flight > 1, "workers": self.host.workers}
        return EngineTimes(self.costs, mode, captured, layers, **ways)

    def sending_ns(self, tokens: int) -> int:
        """Until activations are at the next stage."""
        return self.send_ns * (1 + tokens)


def finds_prefixes(options: dict[str, Any]) -> bool:
    """Whether a policy with these options finds prompts again."""
    return bool(options.get("enable_prefix_caching") or options.get("prefix_caching"))


@st.composite
def pipelines(draw: st.DrawFn, policy: str) -> Case:
    """The same on two to four stages, of a layer or two each."""
    case: Case = draw(cases(policy))
    layers = tuple(draw(st.lists(st.integers(1, 2), min_size=2, max_size=4)))
    return replace(case, layers=layers, send_ns=draw(st.sampled_from([0, 0, 1, 40])))


@st.composite
def cases(draw: st.DrawFn, policy: str) -> Case:
    """Pools from starved to ample, options, and prompts that begin alike where the policy caches prefixes."""
    block_size = draw(st.sampled_from([1, 1, 1, 3, 4, 16]))
    options, workload = draw(OPTIONS[policy]), draw(workloads())
    quarrel = policy == "vllm" and draw(st.integers(0, 4)) == 0
    if quarrel:
        options |= QUARREL
        longest = max(prompt for _, prompt, _, _ in workload)
        workload = [(at // 9, (prompt + longest) // 2, out, urgency) for at, prompt, out, urgency in workload]
    texts = [""] * len(workload)
    if finds_prefixes(options):
        texts = draw(conversations(workload))
        workload = [(at, len(text), out, urgency) for text, (at, _, out, urgency) in zip(texts, workload, strict=True)]
        # With two steps in flight the engine learns of a block of generated tokens a step late: prompts alone say it.
        if not options.get("async_scheduling") and draw(st.booleans()):
            texts = [text + answer(index, workload[index][2]) for index, text in enumerate(texts)]
    whole = policy == "static" or options.get("reservation") == "max_model_len"
    reserved = options["max_model_len"] if whole else 0
    lengths = [max(prompt + output, reserved) for _, prompt, output, _ in workload]
    blocks, costs = draw(pools(lengths, block_size, quarrel)), draw(st.sampled_from([COSTS, UNLIKE_COSTS, EVEN_COSTS]))
    return Case(policy, options, workload, block_size, blocks, texts, costs)


@st.composite
def pools(draw: st.DrawFn, lengths: Sequence[int], block_size: int, quarrel: bool) -> int:
    """Blocks for little more than the longest sequence, or for a part of all of them."""
    if quarrel:
        tokens = max(lengths) * draw(st.integers(90, 120)) // 100
    elif draw(st.booleans()):
        tokens = max(lengths) * draw(st.integers(60, 200)) // 100
    else:
        tokens = sum(lengths) * draw(st.integers(20, 100)) // 100
    return 2 + tokens // block_size


@st.composite
def conversations(draw: st.DrawFn, workload: Sequence[tuple[int, int, int, int]]) -> list[str]:
    """Prompts: a few common pieces in any order, a former prompt once more, or one that goes on after its answer."""
    pieces = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
    texts: list[str] = []
    for _ in workload:
        text = "".join(draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=3)))
        kind = draw(st.sampled_from(["new", "again", "goes on"])) if texts else "new"
        if kind != "new":
            former = draw(st.integers(0, len(texts) - 1))
            begun = texts[former] + (answer(former, workload[former][2]) if kind == "goes on" else "")
            text = begun + draw(st.sampled_from(["", text]))
        texts.append(text[: draw(st.sampled_from([16, 33, 64, 100]))])
    return texts


PIECES = [letter * length for letter, length in zip("abcdefgh", [1, 3, 4, 8, 15, 16, 32, 40], strict=True)]


def answer(index: int, tokens: int) -> str:
    """What a request generates, unlike what any other does."""
    return chr(0x4E00 + index) * tokens


def requests_of(case: Case) -> Iterator[Request]:
    """The package's requests; equal keys stand for equal texts."""
    for index, facts in enumerate(case.workload):
        request = Request(index, *facts)
        text, size = case.texts[index], case.block_size
        request.keys = [text[:end] for end in range(size, len(text) + 1, size)]
        yield request


def run_fast(
    case: Case,
    watch: Callable[[Scheduler], None] = lambda _: None,
    policy: Policy | None = None,
    times: StepTimes | None = None,
) -> LoggedRun:
    """The package's engine; `watch` is called after every step. `policy` and `times` take the place of the case's."""

    def on_step(scheduler: Scheduler) -> None:
        assert scheduler.iterations < 100_000, "the run makes no progress"
        watch(scheduler)

    policy = policy or POLICIES[case.policy](**case.options)
    return simulate(
        requests_of(case),
        policy,
        times or case.times(policy),
        block_size=case.block_size,
        num_blocks=case.blocks,
        prefixes=finds_prefixes(case.options),
        on_step=on_step,
    )


def run_slow(case: Case) -> tuple[Reference, list[Job]]:
    """The reference engine."""
    options = asdict(POLICIES[case.policy](**case.options))
    engine = REFERENCES[case.policy](options, case.costs.step_ns, case.block_size, case.blocks)
    if len(case.layers) > 1:
        engine.stages, engine.clock, engine.send = len(case.layers), engine.stages_alone, case.sending_ns
        bounds = [sum(case.layers[:place]) for place in range(len(case.layers) + 1)]
        engine.split = list(pairwise(bounds))
    if case.host is not None:
        HostClock(engine, case.host, case.costs.token_ns)
    jobs = [Job(index, *facts, text) for index, (facts, text) in enumerate(zip(case.workload, case.texts, strict=True))]
    engine.run(jobs)
    return engine, jobs


def fast_outcome(case: Case) -> dict[str, Any]:
    """What both engines must agree on, from the fast one: every column of every step, what memory holds after each,
    and each request's fate."""
    memory: list[object] = []

    def watch(scheduler: Scheduler) -> None:
        if scheduler.view.prefixes is not None:
            memory.append(scheduler.view.prefixes.picture(scheduler.view.running))

    log = run_fast(case, watch)
    names = ("request", "status", "preemptions", "cached")
    rows = sorted(zip(*(log.requests[name].tolist() for name in names), strict=True))
    assert [index for index, *_ in rows] == list(range(len(case.workload)))
    return {
        "times": token_times_ns(log, len(case.workload)),
        "requests": [(STATUS_NAMES[status], *counts) for _, status, *counts in rows],
        "steps": list(zip(*(log.iterations[name].tolist() for name in ITERATION_COLUMNS), strict=True)),
        "memory": memory,
    }


def slow_outcome(case: Case) -> dict[str, Any]:
    """The same from the reference engine."""
    engine, jobs = run_slow(case)
    return {
        "times": [job.times for job in jobs],
        "requests": [(job.status, job.preemptions, job.cached) for job in jobs],
        "steps": engine.steps,
        "memory": engine.pictures,
    }
