"""What holds for every policy, workload and memory: nothing is lost, nothing runs twice, time never runs back."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.core import Batch, Padding, Request, View
from simulator.engine import simulate
from simulator.errors import PolicyError
from simulator.metrics.tokens import token_times_ns
from simulator.policy import Policy, PolicyBase
from simulator.runlog import FINISHED, REJECTED, STATUS_NAMES, STRETCH_COLUMNS, LoggedRun
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.simulator.runs import ONE_SECOND_A_STEP, Watched
from tests.workloads import COSTS, OPTIONS, POLICIES, workloads

Snapshot = tuple[Any, ...]


@dataclass
class Run:
    """One random run: what it was given, its log, and the decisions of its policy."""

    name: str
    policy: Policy
    workload: list[tuple[int, int, int, int]]
    log: LoggedRun
    watched: Watched
    block_size: int
    end: tuple[int, int]

    @property
    def requests(self) -> dict[str, Any]:
        """The log's request rows in trace order."""
        order = np.argsort(self.log.requests["request"])
        return {name: values[order].tolist() for name, values in self.log.requests.items()}

    @property
    def prompts(self) -> list[int]:
        return [prompt for _, prompt, _, _ in self.workload]

    def target(self, index: int) -> int:
        """Output tokens after the cut at the longest sequence."""
        _, prompt, output, _ = self.workload[index]
        length = self.policy.model_length
        return output if length is None else min(output, max(1, length - prompt))


def run_of(name: str, options: dict[str, Any], workload: Any, block_size: int, num_blocks: int) -> Run:
    policy = POLICIES[name](**options)
    watched = Watched(policy)
    schedulers: list[Scheduler] = []

    def on_step(scheduler: Scheduler) -> None:
        schedulers.append(scheduler)
        assert 0 <= scheduler.view.free_blocks <= scheduler.view.total_blocks

    requests = (Request(index, *facts) for index, facts in enumerate(workload))
    log = simulate(requests, watched, GpuTimes(COSTS), block_size=block_size, num_blocks=num_blocks, on_step=on_step)
    last = schedulers[-1] if schedulers else None
    end = (last.view.free_blocks, last.kv_tokens) if last else (log.total_blocks, 0)
    return Run(name, policy, workload, log, watched, block_size, end)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run of any policy with any options, from ample to starved memory."""
    name = draw(st.sampled_from(sorted(POLICIES)))
    block_size = draw(st.sampled_from([1, 4, 16]))
    blocks = max(2, draw(st.integers(40, 400)) // block_size)
    return run_of(name, draw(OPTIONS[name]), draw(workloads()), block_size, blocks)


def for_any_run(check: Callable[[Run], None]) -> Callable[[], None]:
    """`check` as a test over random runs."""
    return settings(max_examples=40, deadline=None)(given(run=runs())(check))


@for_any_run
def test_every_request_ends_exactly_once(run: Run) -> None:
    """Each request is finished, rejected or stalled, and counted once."""
    assert sorted(run.log.requests["request"].tolist()) == list(range(len(run.workload)))
    assert set(run.log.requests["status"].tolist()) <= set(range(len(STATUS_NAMES)))


@for_any_run
def test_output_tokens_are_conserved(run: Run) -> None:
    """A finished request has all its output tokens, a rejected one none."""
    times = token_times_ns(run.log, len(run.workload))
    for index, status in enumerate(run.requests["status"]):
        if status == FINISHED:
            assert len(times[index]) == run.target(index) == run.requests["generated"][index]
        if status == REJECTED:
            assert times[index] == []


@for_any_run
def test_prompt_tokens_are_conserved(run: Run) -> None:
    """Without preemption exactly the prompts are prefilled, with it more; requests that do not finish aside."""
    computed = int(run.log.iterations["prefill_tokens"].sum())
    rows = run.requests
    whole = sum(prompt for prompt, status in zip(run.prompts, rows["status"], strict=True) if status == FINISHED)
    if all(status != STATUS_NAMES.index("stalled") for status in rows["status"]) and not sum(rows["preemptions"]):
        assert computed == whole
    else:
        assert computed >= whole


@for_any_run
def test_no_token_comes_twice(run: Run) -> None:
    """The token times of a request are strictly increasing: one token a step at most."""
    for times in token_times_ns(run.log, len(run.workload)):
        assert all(earlier < later for earlier, later in pairwise(times))


@for_any_run
def test_memory_returns_to_full(run: Run) -> None:
    """In the end all blocks are free and the cache is empty."""
    unfinished = [status for status in run.requests["status"] if status not in (FINISHED, REJECTED)]
    if not unfinished:
        assert run.end == (run.log.total_blocks, 0)


@for_any_run
def test_free_blocks_stay_within_the_pool(run: Run) -> None:
    """Free blocks are never negative and never more than there are."""
    free = run.log.iterations["free_blocks"]
    assert ((free >= 0) & (free <= run.log.total_blocks)).all()


@for_any_run
def test_cached_tokens_fit_the_taken_blocks(run: Run) -> None:
    """The KV entries of an iteration fit the blocks that are taken, and there are none without a running request."""
    rows = run.log.iterations
    assert (rows["kv_tokens"] >= 0).all()
    assert (rows["kv_tokens"] <= (run.log.total_blocks - rows["free_blocks"]) * run.block_size).all()
    assert (rows["kv_tokens"][rows["running"] == 0] == 0).all()


@for_any_run
def test_time_never_runs_back(run: Run) -> None:
    """A step lasts, and starts when or after the one before ends: steps never overlap on one GPU."""
    rows = run.log.iterations
    assert (rows["start_ns"] < rows["end_ns"]).all()
    assert (rows["start_ns"][1:] >= rows["end_ns"][:-1]).all()


@for_any_run
def test_nothing_happens_before_the_arrival(run: Run) -> None:
    """No request is scheduled before it arrives."""
    starts, rows = run.log.iterations["start_ns"], run.requests
    for index, first in enumerate(rows["first_scheduled"]):
        assert first < 0 or starts[first] >= run.workload[index][0]


@for_any_run
def test_steps_do_what_was_planned(run: Run) -> None:
    """The logged decodes and prefill tokens are those of the policy's batches."""
    rows = run.log.iterations
    planned = [sum(step.values()) for step in run.watched.steps]
    assert (rows["num_decodes"] + rows["prefill_tokens"]).tolist() == planned


@for_any_run
def test_preemptions_are_counted(run: Run) -> None:
    """A request's preemptions are the times it was a victim."""
    victims = Counter(index for step in run.watched.victims for index in step)
    assert run.requests["preemptions"] == [victims[index] for index in range(len(run.workload))]


@for_any_run
def test_budget_is_kept(run: Run) -> None:
    """vLLM: tokens of a step; Sarathi-Serve: decodes and chunks unless decodes alone exceed it; SARATHI and those that
    run prefills and decodes apart: chunks."""
    rows = run.log.iterations
    tokens = rows["num_decodes"] + rows["prefill_tokens"]
    policy: Any = run.policy
    if run.name == "vllm":
        assert (tokens <= policy.max_num_batched_tokens).all()
    elif run.name == "sarathi" and policy.max_prefills_per_batch:
        assert (rows["prefill_tokens"] <= policy.chunk_size).all()
        assert (rows["num_prefills"] <= policy.max_prefills_per_batch).all()
    elif run.name == "sarathi":
        assert (tokens[rows["num_prefills"] > 0] <= policy.chunk_size).all()
    elif run.name == "orca" and policy.max_prefills_per_batch:
        assert (rows["num_prefills"] <= policy.max_prefills_per_batch).all()
    elif run.name == "vllm_v0" and policy.enable_chunked_prefill:
        assert (tokens <= policy.max_num_batched_tokens).all()
    elif run.name in ("simple_chunking", "vllm_v0"):
        budget = policy.chunk_size if run.name == "simple_chunking" else policy.max_num_batched_tokens
        assert (rows["prefill_tokens"] <= budget).all()


@for_any_run
def test_prefills_and_decodes_apart(run: Run) -> None:
    """Only Orca, SARATHI, and vLLM since version 1 or with chunked prefill mix them in a step."""
    chunked = run.name == "vllm_v0" and run.policy.enable_chunked_prefill  # type: ignore[attr-defined]
    if run.name in ("static", "simple_chunking", "vllm_v0") and not chunked:
        rows = run.log.iterations
        assert not ((rows["num_prefills"] > 0) & (rows["num_decodes"] > 0)).any()


@for_any_run
def test_static_batches_start_when_the_last_one_has_ended(run: Run) -> None:
    """A step of prefills runs nobody else."""
    if run.name == "static":
        rows = run.log.iterations
        starts = rows["num_prefills"] > 0
        assert (rows["running"][starts] == rows["num_prefills"][starts]).all()


@for_any_run
def test_number_of_sequences_is_kept(run: Run) -> None:
    """Never more running requests than the policy allows."""
    policy: Any = run.policy
    if run.name == "tensorrt_llm":
        limit = policy.max_num_requests or policy.max_batch_size
    else:
        limit = policy.max_batch_size if run.name in ("orca", "static", "tgi") else policy.max_num_seqs
    if run.name != "tgi" or (limit is not None and not policy.prefill_chunking):
        assert (run.log.iterations["running"] <= limit).all()


@for_any_run
def test_reserving_policies_never_preempt(run: Run) -> None:
    """What is reserved for the whole request cannot run out."""
    if run.name in ("orca", "static", "tgi"):
        assert sum(run.requests["preemptions"]) == 0
        assert set(run.requests["status"]) <= {FINISHED, REJECTED}


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=10, deadline=None)
@given(data=st.data(), workload=workloads(), pool=st.integers(40, 400))
def test_same_run_twice(name: str, data: st.DataObject, workload: Any, pool: int) -> None:
    """The same input gives the same log, byte for byte."""
    options = data.draw(OPTIONS[name])
    one, two = (run_of(name, options, workload, 4, max(2, pool // 4)).log for _ in range(2))
    for column in ("start_ns", *list(STRETCH_COLUMNS)[2:], "end_ns", "free_blocks"):
        assert one.iterations[column].tobytes() == two.iterations[column].tobytes()
    for part in ("stays", "emissions", "requests"):
        for column, values in getattr(one, part).items():
            assert values.tobytes() == getattr(two, part)[column].tobytes()


class LeavesAlone(Watched):
    """Compares everything a policy can reach before and after each plan."""

    def plan(self, view: View) -> Batch | None:
        before = everything(view)
        batch = self.policy.plan(view)
        assert everything(view) == before
        return batch


def everything(view: View) -> Snapshot:
    """The view, its queues, its cohort and every request in them, as values."""
    decodes = view.decodes
    requests = [*view.running, *view.waiting]
    return (
        [
            getattr(view, name)
            for name in ("block_size", "total_blocks", "free_blocks", "decode_blocks", "last_prefills", "now_ns")
        ],
        [request.index for request in view.waiting],
        [request.index for request in view.running],
        [request.index for request in view.prefilling],
        [(request.index, [getattr(request, name) for name in Request.__slots__]) for request in requests],
        (decodes.clock, decodes.count, decodes.birth_sum, list(decodes.openers)),
    )


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=25, deadline=None)
@given(data=st.data(), workload=workloads(), block_size=st.sampled_from([1, 4, 16]), pool=st.integers(40, 400))
def test_planning_changes_nothing(name: str, data: st.DataObject, workload: Any, block_size: int, pool: int) -> None:
    """`plan` decides and leaves the view and all requests as they were."""
    policy = LeavesAlone(POLICIES[name](**data.draw(OPTIONS[name])))
    requests = (Request(index, *facts) for index, facts in enumerate(workload))
    simulate(requests, policy, GpuTimes(COSTS), block_size=block_size, num_blocks=max(2, pool // block_size))


class Misbehaving(PolicyBase):
    """Runs everything whole until its first decode, then what `mistake(view)` returns."""

    def __init__(self, mistake: Callable[[View], Batch], from_the_start: bool = False) -> None:
        self.mistake = mistake
        self.from_the_start = from_the_start

    def plan(self, view: View) -> Batch | None:
        if self.from_the_start or view.decoding:
            return self.mistake(view)
        return Batch([(request, request.known) for request in view.waiting][:1]) if view.waiting else None


def refused(mistake: Callable[[View], Batch], from_the_start: bool = False, num_blocks: int = 100) -> str:
    """The message to a policy that makes this mistake with one decoding and one waiting request."""
    requests = iter([Request(0, 0, 20, 5), Request(1, 0, 30, 5)])
    policy = Misbehaving(mistake, from_the_start)
    with pytest.raises(PolicyError) as caught:
        simulate(requests, policy, GpuTimes(ONE_SECOND_A_STEP), block_size=16, num_blocks=num_blocks)
    return str(caught.value)


def decoding(view: View) -> Request:
    return view.decoding_requests()[0]


def waiting(view: View) -> Request:
    return next(iter(view.waiting))


MISTAKES: list[tuple[Callable[[View], Any], str]] = [
    (
        lambda view: Batch([(waiting(view), 20)], padding=Padding(1, 30, 30, [(0, 19)])),
        "Misbehaving planned 21 tokens and pads them to 20",
    ),
    (
        lambda _: Batch(holds=Batch.UNTIL_FINISH, padding=Padding(1, 30, 30)),
        "Misbehaving promises what follows a padded step, where no padding would be priced",
    ),
    (
        lambda view: Batch([(waiting(view), 31)]),
        "Misbehaving gave request 1 (30 + 5 tokens) 31 tokens; it has 30 left",
    ),
    (
        lambda view: Batch([(waiting(view), 0)]),
        "Misbehaving gave request 1 (30 + 5 tokens) 0 tokens; it has 30 left",
    ),
    (
        lambda view: Batch([(waiting(view), 20), (waiting(view), 20)]),
        "Misbehaving gave request 1 (30 + 5 tokens) two chunks in one step",
    ),
    (
        lambda view: Batch([(decoding(view), 1)]),
        "Misbehaving gave request 0 (20 + 5 tokens) a prefill chunk, but its prompt is complete",
    ),
    (
        lambda view: Batch(preempted=[waiting(view)]),
        "Misbehaving preempts request 1 (30 + 5 tokens), which is not running",
    ),
    (
        lambda view: Batch(preempted=[decoding(view), decoding(view)]),
        "Misbehaving preempts request 0 (20 + 5 tokens) twice in one step",
    ),
    (
        lambda view: Batch([(decoding(view), 20)], preempted=[decoding(view)]),
        "Misbehaving preempts request 0 (20 + 5 tokens) and gives it tokens in one step",
    ),
    (
        lambda view: Batch(decodes=[waiting(view)]),
        "Misbehaving decodes request 1 (30 + 5 tokens), which is not decoding",
    ),
    (
        lambda view: Batch(decodes=[decoding(view)], preempted=[decoding(view)]),
        "Misbehaving preempts and decodes request 0 (20 + 5 tokens) in one step",
    ),
    (lambda _: [1], "Misbehaving.plan returned [1]; it must be a Batch or None"),
    (
        lambda view: Batch(rejected=[(decoding(view), "of no use")]),
        "Misbehaving rejects request 0 (20 + 5 tokens), which is not waiting",
    ),
    (lambda _: Batch(decodes=()), "Misbehaving returned an empty batch; return None to schedule nothing"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_misbehaving_policy(mistake: Callable[[View], Batch], message: str) -> None:
    """A policy that breaks its contract is told which request and which numbers."""
    assert refused(mistake) == message


def test_empty_batch_at_the_start() -> None:
    """`Batch()` with nothing to decode is an empty batch too."""
    assert "empty batch" in refused(lambda _: Batch(), from_the_start=True)


def test_more_blocks_than_free() -> None:
    """A batch that needs more memory than there is is refused with the number of blocks."""
    message = refused(lambda view: Batch([(request, request.known) for request in view.waiting]), True, num_blocks=3)
    assert message == "Misbehaving planned 1 KV-cache blocks more than were free"


@dataclass(frozen=True)
class Generous(PolicyBase):
    """Caches prefixes and admits everybody whole, whatever is free; `preempting`: for the last running request."""

    preempting: bool = False

    @property
    def caches_prefixes(self) -> bool:
        return True

    def plan(self, view: View) -> Batch | None:
        if self.preempting and view.running and view.waiting:
            last = [*view.running][-1]
            chunks, decodes = [(waiting(view), 20)], [each for each in view.decoding_requests() if each is not last]
            return Batch(chunks, decodes, preempted=[last])
        return Batch([(request, request.known) for request in view.waiting])


@pytest.mark.parametrize("preempting", [False, True])
def test_more_cached_blocks_than_free(preempting: bool) -> None:
    """The same where blocks have identities, with and without victims."""
    requests = [Request(0, 0, 4, 5), Request(1, 0, 4, 5), Request(2, 1, 20, 5)]
    with pytest.raises(PolicyError, match="Generous planned more KV-cache blocks than were free"):
        simulate(
            iter(requests), Generous(preempting), GpuTimes(ONE_SECOND_A_STEP), block_size=4, num_blocks=6, prefixes=True
        )


def test_policy_that_schedules_nothing() -> None:
    """Requests that a policy never schedules are stalled once nothing else can come, and time stands still."""

    class Idle(PolicyBase):
        def plan(self, _: View) -> Batch | None:
            return None

    requests = iter([Request(0, 0, 20, 5), Request(1, 7, 30, 5)])
    log = simulate(requests, Idle(), GpuTimes(ONE_SECOND_A_STEP), block_size=16, num_blocks=100)
    assert [STATUS_NAMES[status] for status in log.requests["status"]] == ["stalled", "stalled"]
    assert len(log.iterations["start_ns"]) == 0


def test_idling_with_work_is_a_bubble() -> None:
    """A policy that waits for company leaves the GPU idle: the time until the second arrival is a bubble."""

    class Pairs(PolicyBase):
        def plan(self, view: View) -> Batch | None:
            if len(view.waiting) == 2:
                return Batch([(request, request.known) for request in view.waiting])
            return None

    requests = iter([Request(0, 0, 20, 1), Request(1, 7, 30, 1)])
    log = simulate(requests, Pairs(), GpuTimes(ONE_SECOND_A_STEP), block_size=16, num_blocks=100)
    assert log.bubble_ns == 7
