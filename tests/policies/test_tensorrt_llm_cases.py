"""Cases of TensorRT-LLM's own unit tests of its two stages, from a file of their inputs and outcomes that is not
part of this repository: `trt_unit_cases.json` in the folder RECORDED_DECISIONS, or in a folder of it.

Left out is what is not modelled: LoRA pages, priorities, draft tokens, beams, reused blocks, requests in flight, and a
limit for one prompt's chunk apart from that for all (in the engine they are the same; the chunk rules alone know both).
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policies._context_chunks import equal_progress, first_come
from policies.tensorrt_llm import TensorrtLlm
from simulator.core import Batch, Request, View
from simulator.scheduler import Scheduler
from simulator.step_times import GpuTimes
from tests.conftest import NO_RECORDINGS
from tests.simulator.runs import ONE_SECOND_A_STEP

Record = dict[str, Any]
AMPLE = 10**6
NOT_MODELLED = {"lora", "draft", "prio", "bw", "reusable", "inflight", "peft", "block_reuse", "max_context_length"}


def cases(kind: str) -> list[Any]:
    """Parameters of a test: the cases that are modelled, or a skip that says why there are none."""
    folder = os.environ.get("RECORDED_DECISIONS")
    files = sorted(Path(folder).glob("**/trt_unit_cases.json")) if folder else []
    if not files:
        return [pytest.param(None, id="no file", marks=pytest.mark.skip(reason=NO_RECORDINGS))]
    return [pytest.param(case, id=case["name"]) for case in json.loads(files[0].read_text())[kind]]


def modelled(case: Record) -> bool:
    """Whether it asks for nothing that is not modelled."""
    asked = [{key for key, value in part.items() if value} for part in (case, *case["requests"])]
    return not NOT_MODELLED & set().union(*asked) and case.get("num_micro_batches", 1) == 1


def modelled_cases(kind: str) -> list[Any]:
    found = cases(kind)
    return [each for each in found if each.values[0] is None or modelled(each.values[0])]


def scheduler(policy: TensorrtLlm, block_size: int, num_blocks: int) -> Scheduler:
    return Scheduler(policy, GpuTimes(ONE_SECOND_A_STEP), block_size=block_size, num_blocks=num_blocks)


def chunks_of(case: Record) -> Record:
    chunking = case.get("chunking") or {"policy": "FIRST_COME_FIRST_SERVED", "unit": 1}
    return {
        "enable_chunked_context": bool(case.get("chunking")),
        "context_chunking_policy": chunking["policy"],
        "chunk_unit_size": chunking["unit"],
    }


@dataclass(frozen=True)
class CapacityAlone(TensorrtLlm):
    """Everybody whom the capacity stage lets through runs; prompts in chunks of `chunk` tokens, after a pause whole."""

    chunk: int | None = None

    def plan(self, view: View) -> Batch | None:
        fit, paused = self.let_through(view)
        contexts = [request for request in fit if request.state != Request.DECODING]
        decodes = [request for request in fit if request.state == Request.DECODING]
        rests = [request.known - request.computed for request in contexts]
        chunks = [
            (request, rest if request.preemptions else min(self.chunk or rest, rest))
            for request, rest in zip(contexts, rests, strict=True)
        ]
        return Batch(chunks, decodes, paused) if fit or paused else None


@pytest.mark.parametrize("case", modelled_cases("capacity"))
def test_capacity(case: Record) -> None:
    """Who is active, whom the stage lets through and how far each has come, in all iterations and policies named."""
    for name in case["policies"]:
        limits = {"max_num_requests": case["max_num_requests"], "max_num_active_requests": AMPLE}
        policy = CapacityAlone(name, max_num_tokens=AMPLE, chunk=case["requests"][0].get("chunk"), **limits)
        engine = scheduler(policy, case["tokens_per_block"], case["num_blocks"])
        coming = [Request(each["id"], each["at"], each["p"], each["o"]) for each in case["requests"]]
        everybody = list(coming)
        for iteration in range(case["iterations"]):
            while coming and coming[0].arrival_ns <= iteration:
                engine.arrive(coming.pop(0))
            active = [request for request in everybody if request not in coming and request.state != Request.ENDED]
            for expected in case["expect"]:
                if expected["from"] <= iteration < expected["to"]:
                    begun = iteration == expected["from"]
                    check_iteration(expected, active, policy.let_through(engine.view)[0], engine.view, begun)
            engine.schedule(iteration)
            engine.complete()
        assert not engine.unfinished


def check_iteration(expected: Record, active: list[Request], fit: list[Request], view: View, begun: bool) -> None:
    assert [request.index for request in active] == expected["active"]
    assert {request.index for request in fit} == {each["id"] for each in expected["sched"]}
    for request in fit if begun else ():
        (wanted,) = (each for each in expected["sched"] if each["id"] == request.index)
        assert state(request, view) == {key: wanted[key] for key in ("o", "p", "gen", "pos")}


def state(request: Request, view: View) -> dict[str, int]:
    """As the engine counts: tokens that a paused request had generated are part of its prompt."""
    generated = request.generated
    if request.state == Request.DECODING:
        generated += request.cohort.clock - request.start_clock  # type: ignore[union-attr]
        prompt = request.birth + request.start_clock
        before = prompt - request.prompt_tokens
        return {"o": request.output_tokens - before, "p": prompt, "gen": generated - before, "pos": prompt}
    rest = request.output_tokens - generated
    return {"o": rest, "p": request.known, "gen": 0, "pos": view.context_tokens(request)}


@pytest.mark.parametrize("case", modelled_cases("micro_batch"))
def test_micro_batch(case: Record) -> None:
    """How many run, who does and who does not, with memory for all."""
    limits = {"max_batch_size": case["max_batch_size"], "max_num_tokens": case["max_num_tokens"] or AMPLE}
    ample = {"max_num_requests": AMPLE, "max_num_active_requests": AMPLE}
    policy = TensorrtLlm("MAX_UTILIZATION", **limits, **ample, **chunks_of(case))
    engine = scheduler(policy, 1, AMPLE)
    everybody = [Request(each["id"], 0, each["p"], each["o"]) for each in case["requests"]]
    for request in everybody:
        engine.arrive(request)
    for iteration in range(case["iterations"]):
        decoding = engine.view.decoding_requests()
        batch = policy.plan(engine.view)
        ran: list[int] = []
        if batch is not None:
            ran = [request.index for request in (*dict(batch.chunks), *(batch.decodes or decoding))]
            engine.schedule(iteration)
            engine.complete()
        for expected in case["expect"]:
            if expected["from"] <= iteration < expected["to"]:
                assert len(ran) == expected["n"]
                assert set(expected.get("has", ())) <= set(ran)
                assert not set(expected.get("lacks", ())) & set(ran)
                for index, (first, each) in expected.get("pos_after", {}).items():
                    passed = iteration - expected["from"]
                    known = everybody[int(index)].prompt_tokens
                    assert min(engine.view.context_tokens(everybody[int(index)]), known) == first + each * passed
    assert engine.unfinished == 0 or case["iterations"] == 1


@pytest.mark.parametrize("case", modelled_cases("micro_batch_one_step"))
def test_one_step(case: Record) -> None:
    """Prompts and chunks of a single step, in order."""
    policy = TensorrtLlm(
        max_batch_size=case["max_batch_size"], max_num_tokens=case["max_num_tokens"] or AMPLE, **chunks_of(case)
    )
    engine = scheduler(policy, 1, AMPLE)
    for each in case["requests"]:
        engine.arrive(Request(each["id"], 0, each["p"], 10))
    batch = policy.plan(engine.view)
    assert batch is not None
    assert [[request.index, tokens] for request, tokens in batch.chunks] == case["ctx"]


@pytest.mark.parametrize("case", cases("chunking"))
def test_chunk_rules(case: Record) -> None:
    """Where each prompt stands after every round; draft tokens, which follow the chunks, are not looked at."""
    longest = case["max_context_length"] or AMPLE
    for name, divide in (("FIRST_COME_FIRST_SERVED", first_come), ("EQUAL_PROGRESS", equal_progress)):
        at = [0] * len(case["lengths"])
        for expected in case["positions"][name]:
            rests: Sequence[int] = [length - place for length, place in zip(case["lengths"], at, strict=True)]
            sizes = divide(rests, case["token_capacity"] or AMPLE, case["unit"], longest)
            at = [place + size for place, size in zip(at, sizes, strict=True)]
            assert at == expected, name
