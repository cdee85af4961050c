"""The replay of recorded decisions notices what differs: tiny recordings made by hand, whole and with a value changed.

A step takes 1000 ns, 10 a token and 1 a token of context; blocks have four tokens.
"""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import main
from tests.golden_files import Record, Scenario

TIMES = {"a_ns": 1000, "b_ns_per_token": 10, "c_ns_per_ctx_token": 1}


def recording(engine: str, config: Record, requests: list[Record], steps: list[Record], summary: Record) -> Scenario:
    header = {"kind": "header", "engine": engine, "name": "tiny", "config": {"block_size": 4, **config}}
    numbered = [{"i": number, **step} for number, step in enumerate(steps)]
    return Scenario({**header, "time_model": TIMES}, requests, numbered, {"kind": "summary", **summary})


# Two prompts fill the four blocks (a fifth is the null block). Step 1: the first decode needs a fifth and preempts the
# second request, whose last block it takes. Step 2: that one is resumed and finds its first block in the cache.
VLLM = recording(
    "vllm",
    {
        "num_gpu_blocks": 5,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 2,
        "long_prefill_token_threshold": 0,
        "enable_chunked_prefill": True,
        "policy": "fcfs",
        "enable_prefix_caching": True,
        "scheduler_reserve_full_isl": True,
        "max_model_len": 100,
    },
    [{"id": 0, "arr": 0, "p": 8, "o": 2}, {"id": 1, "arr": 0, "p": 8, "o": 2}],
    [
        {"t": 0, "dt": 1176, "add": [0, 1], "s": [[0, 8], [1, 8]], "new": [0, 1], "tok": 16, "ctx": 16}
        | {"run": 2, "wait": 0, "free": 0, "free2": 0, "blk": [[1, [3, 4]], [0, [1, 2]]]},
        {"t": 1176, "dt": 1019, "s": [0], "pre": [1], "fin": [0], "tok": 1, "ctx": 9}
        | {"run": 1, "wait": 1, "free": 1, "free2": 4, "blk": [[0, [4]]]},
        {"t": 2195, "dt": 1059, "s": [[1, 5]], "res": [1], "hit": [[1, 4]], "fin": [1], "tok": 5, "ctx": 9}
        | {"run": 1, "wait": 0, "free": 1, "free2": 4, "blk": [[1, [3, 4, 2]]]},
    ],
    {"status": "ok", "steps": 3, "end_t": 3254, "num_preemptions": 1, "num_finished": 2, "total_out_tokens": 4}
    | {"first_token_t": [1176, 1176], "finish_t": [2195, 3254], "out_tokens": [2, 2], "preempt": [0, 1]}
    | {"hit_tokens_first": [0, 0]},
)

# The prompt of nine tokens is dropped in the step that admits the one behind it.
VLLM_V0 = recording(
    "sarathi-serve",
    {"scheduler": "vllm", "num_gpu_blocks": 4, "max_num_seqs": 2, "max_batched_tokens": 8, "max_model_len": 100},
    [{"id": 0, "arr": 0, "p": 9, "o": 1}, {"id": 1, "arr": 0, "p": 6, "o": 2}],
    [
        {"t": 0, "dt": 1066, "add": [0, 1], "s": [[1, 6]], "npf": 1, "ign": [0], "new": [1], "tok": 6, "ctx": 6}
        | {"run": 1, "wait": 0, "free": 2, "free2": 2},
        {"t": 1066, "dt": 1017, "s": [1], "npf": 0, "fin": [1], "tok": 1, "ctx": 7}
        | {"run": 1, "wait": 0, "free": 2, "free2": 4},
    ],
    {"status": "ok", "steps": 2, "end_t": 2083, "num_preemptions": 0, "num_finished": 1, "total_out_tokens": 2}
    | {"first_token_t": [None, 1066], "finish_t": [None, 2083], "out_tokens": [0, 2], "preempt": [0, 0]}
    | {"ignored": [0]},
)

# The engine answers its decode turn with an empty batch while the only prompt is in progress.
SIMPLE_CHUNKING = recording(
    "sarathi-serve",
    {"scheduler": "simple_chunking", "num_gpu_blocks": 4, "max_num_seqs": 2, "chunk_size": 4, "max_model_len": 100},
    [{"id": 0, "arr": 7, "p": 6, "o": 1}],
    [
        {"t": 7, "dt": 1044, "add": [0], "s": [[0, 4]], "npf": 1, "new": [0], "tok": 4, "ctx": 4}
        | {"run": 1, "wait": 0, "free": 2, "free2": 2},
        {"t": 1051, "dt": 1000, "s": [], "npf": 0, "tok": 0, "ctx": 0} | {"run": 1, "wait": 0, "free": 2, "free2": 2},
        {"t": 2051, "dt": 1026, "s": [[0, 2]], "npf": 1, "fin": [0], "tok": 2, "ctx": 6}
        | {"run": 1, "wait": 0, "free": 2, "free2": 4},
    ],
    {"status": "ok", "steps": 3, "end_t": 3077, "num_preemptions": 0, "num_finished": 1, "total_out_tokens": 1}
    | {"first_token_t": [3077], "finish_t": [3077], "out_tokens": [1], "preempt": [0], "ignored": []},
)

# As VLLM, but Sarathi-Serve makes the preempted request start its output over.
PREEMPTING = recording(
    "sarathi-serve",
    {"scheduler": "sarathi", "num_gpu_blocks": 4, "max_num_seqs": 2, "chunk_size": 16, "max_model_len": 100},
    [{"id": 0, "arr": 0, "p": 8, "o": 2}, {"id": 1, "arr": 0, "p": 8, "o": 2}],
    [
        {"t": 0, "dt": 1176, "add": [0, 1], "s": [[0, 8], [1, 8]], "npf": 2, "new": [0, 1], "tok": 16, "ctx": 16}
        | {"run": 2, "wait": 0, "free": 0, "free2": 0},
        {"t": 1176, "dt": 1019, "s": [0], "npf": 0, "pre": [1], "fin": [0], "tok": 1, "ctx": 9}
        | {"run": 1, "wait": 1, "free": 1, "free2": 4},
        {"t": 2195, "dt": 1099, "s": [[1, 9]], "npf": 1, "tok": 9, "ctx": 9}
        | {"run": 1, "wait": 0, "free": 1, "free2": 1},
        {"t": 3294, "dt": 1020, "s": [1], "npf": 0, "fin": [1], "tok": 1, "ctx": 10}
        | {"run": 1, "wait": 0, "free": 1, "free2": 4},
    ],
    {"status": "ok", "steps": 4, "end_t": 4314, "num_preemptions": 1, "num_finished": 2, "total_out_tokens": 5}
    | {"first_token_t": [1176, 1176], "finish_t": [2195, 4314], "out_tokens": [2, 3], "preempt": [0, 1], "ignored": []},
)

# The third prompt is the first once more, which has ended: all but a token is found. Of seven blocks one is for health
# checks; 8 + 2 - 1 slots take three.
TGI = recording(
    "tgi",
    {
        "max_batch_total_tokens": 28,
        "max_batch_prefill_tokens": 12,
        "support_chunking": False,
        "prefix_caching": True,
        "waiting_served_ratio": 0.3,
        "max_waiting_tokens": 20,
        "max_batch_size": None,
        "window_size": None,
        "speculate": 0,
        "requires_padding": False,
    },
    [
        {"id": 0, "arr": 0, "p": 8, "o": 2, "seg": [[1, 8]]},
        {"id": 1, "arr": 0, "p": 4, "o": 1},
        {"id": 2, "arr": 3000, "p": 8, "o": 1, "seg": [[1, 8]]},
    ],
    [
        {"t": 0, "dt": 1132, "k": "p", "add": [0, 1], "s": [[0, 8], [1, 4]], "new": [0, 1], "fin": [1], "tok": 12}
        | {"ctx": 12, "rows": 2, "held": 4, "wait": 0},
        {"t": 1132, "dt": 1019, "k": "d", "s": [0], "fin": [0], "tok": 1, "ctx": 9, "rows": 1, "held": 3, "wait": 0},
        {"t": 3000, "dt": 1018, "k": "p", "add": [2], "s": [2], "new": [2], "hit": [[2, 7]], "fin": [2], "tok": 1}
        | {"ctx": 8, "rows": 1, "held": 2, "wait": 0},
    ],
    {"status": "ok", "steps": 3, "end_t": 4018, "num_preemptions": 0, "num_finished": 3, "total_out_tokens": 4}
    | {"first_token_t": [1132, 1132, 4018], "finish_t": [2151, 1132, 4018], "out_tokens": [2, 1, 1]},
)

# Step 1: the first decode opens a block and pauses the second request, which keeps its place among the active.
TENSORRT_LLM = recording(
    "tensorrt_llm",
    {"capacity_policy": "MAX_UTILIZATION", "chunking": None, "chunk_unit_size": None, "max_seq_len": 100}
    | {"max_batch_size": 2, "max_num_tokens": 16, "max_num_requests": 2, "max_num_active_requests": None}
    | {"tokens_per_block": 4, "num_blocks": 4},
    [{"id": 0, "arr": 0, "p": 8, "o": 3}, {"id": 1, "arr": 0, "p": 8, "o": 2}],
    [
        {"t": 0, "dt": 1176, "add": [0, 1], "act": "=", "s": [[0, 8], [1, 8]], "nctx": 2, "new": [0, 1], "fit": 2}
        | {"tok": 16, "ctx": 16, "run": 2, "wait": 0, "free": 0, "free2": 0},
        {"t": 1176, "dt": 1019, "s": [0], "pre": [1], "fit": 1}
        | {"tok": 1, "ctx": 9, "run": 2, "wait": 0, "free": 1, "free2": 1},
        {"t": 2195, "dt": 1020, "s": [0], "fin": [0], "fit": 1}
        | {"tok": 1, "ctx": 10, "run": 2, "wait": 0, "free": 1, "free2": 4},
        {"t": 3215, "dt": 1099, "s": [[1, 9]], "nctx": 1, "res": [1], "fin": [1], "fit": 1}
        | {"tok": 9, "ctx": 9, "run": 1, "wait": 0, "free": 1, "free2": 4},
    ],
    {"status": "ok", "steps": 4, "end_t": 4314, "num_preemptions": 1, "num_finished": 2, "total_out_tokens": 5}
    | {"first_token_t": [1176, 1176], "finish_t": [3215, 4314], "out_tokens": [3, 2], "preempt": [0, 1]},
)

# Paused after two tokens the second prompt is longer than a step: when the first request has ended the engine stops.
ASSERTING = recording(
    "tensorrt_llm",
    TENSORRT_LLM.config | {"max_num_tokens": 8},
    [{"id": 0, "arr": 0, "p": 6, "o": 4}, {"id": 1, "arr": 1, "p": 7, "o": 5}],
    [
        {"t": 0, "dt": 1066, "add": [0], "act": "=", "s": [[0, 6]], "nctx": 1, "new": [0], "fit": 1}
        | {"tok": 6, "ctx": 6, "run": 1, "wait": 0, "free": 2, "free2": 2},
        {"t": 1066, "dt": 1094, "add": [1], "act": "=", "s": [[1, 7], 0], "nctx": 1, "new": [1], "fit": 2}
        | {"tok": 8, "ctx": 14, "run": 2, "wait": 0, "free": 0, "free2": 0},
        {"t": 2160, "dt": 1036, "s": [0, 1], "fit": 2}
        | {"tok": 2, "ctx": 16, "run": 2, "wait": 0, "free": 0, "free2": 0},
        {"t": 3196, "dt": 1019, "s": [0], "pre": [1], "fin": [0], "fit": 1}
        | {"tok": 1, "ctx": 9, "run": 2, "wait": 0, "free": 1, "free2": 4},
        {"t": 4215, "dt": 0, "assert": 1},
    ],
    {"status": "assert", "steps": 4, "end_t": 4215, "num_preemptions": 1, "num_finished": 1, "total_out_tokens": 6}
    | {"first_token_t": [1066, 2160], "finish_t": [4215, None], "out_tokens": [4, 2], "preempt": [0, 1]},
)

WHOLE = {
    "vllm": VLLM,
    "vllm_v0": VLLM_V0,
    "simple_chunking": SIMPLE_CHUNKING,
    "tensorrt_llm": TENSORRT_LLM,
    "tgi": TGI,
}
STEP_FIELDS = ("i", "t", "dt", "add", "s", "new", "pre", "fin", "tok", "ctx", "run", "wait", "free", "free2")
OWN_FIELDS = {
    "vllm": ("res", "hit", "blk"),
    "sarathi-serve": ("npf", "ign"),
    "tensorrt_llm": ("act", "nctx", "fit", "res"),
    "tgi": ("k", "hit", "rows", "held"),
}
STEPS_TO_CHANGE = [
    (name, place, key)
    for name, scenario in WHOLE.items()
    for place in range(len(scenario.steps))
    for key in (*STEP_FIELDS, *OWN_FIELDS[scenario.header["engine"]])
]
SUMMARIES_TO_CHANGE = [(name, key) for name, scenario in WHOLE.items() for key in scenario.summary if key != "kind"]


def verdict(folder: Path, capsys: pytest.CaptureFixture[str], *scenarios: Scenario) -> tuple[int, list[str]]:
    """Exit status and output for a file of these scenarios."""
    lines: list[Any] = []
    for scenario in scenarios:
        lines += [scenario.header, {"kind": "requests", "requests": scenario.requests}, *scenario.steps]
        lines += [scenario.summary] if scenario.summary else []
    path = folder / "tiny.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return main([str(path)]), capsys.readouterr().out.splitlines()


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1])] if value and isinstance(value[-1], int) else [*value, 0]
    return "max_steps" if isinstance(value, str) else value + 1


def test_recordings_are_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several scenarios of a file each get a line, and all together the last one."""
    status, lines = verdict(tmp_path, capsys, *WHOLE.values(), ASSERTING, PREEMPTING)
    assert status == 0
    assert lines == [
        "vllm tiny: ok",
        "sarathi-serve tiny: ok",
        "sarathi-serve tiny: ok",
        "tensorrt_llm tiny: ok",
        "tgi tiny: ok",
        "tensorrt_llm tiny: ok",
        "sarathi-serve tiny: ok up to the first preemption, step 1 of 4",
        "7 scenarios, 21 steps, 0 different",
    ]


def test_a_folder_stands_for_its_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files beside them are let be."""
    verdict(tmp_path, capsys, VLLM)
    (tmp_path / "cases.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "vllm tiny: ok"


@pytest.mark.parametrize(("name", "place", "key"), STEPS_TO_CHANGE)
def test_every_field_of_a_step_counts(
    name: str, place: int, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the recording leaves a field out because its list is empty."""
    scenario = copy.deepcopy(WHOLE[name])
    scenario.steps[place][key] = changed(scenario.steps[place].get(key, []))
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert lines[0].startswith(f"{scenario.name}: step {place}: ")
    assert lines[1].endswith(" 1 different")


@pytest.mark.parametrize(("name", "key"), SUMMARIES_TO_CHANGE)
def test_every_field_of_the_summary_counts(
    name: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, times and what became of each request."""
    scenario = copy.deepcopy(WHOLE[name])
    scenario.summary[key] = changed(scenario.summary[key])
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert f"{scenario.name}: summary: {key}: recorded " in lines[0]


@pytest.mark.parametrize("name", WHOLE)
def test_recording_that_ends_early(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its last step the requests have not finished."""
    scenario = copy.deepcopy(WHOLE[name])
    scenario.steps.pop()
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert "summary: status: recorded ok, simulated unfinished" in lines[0]


@pytest.mark.parametrize("name", WHOLE)
def test_recording_that_goes_on(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step after the last request's end is one too many."""
    scenario = copy.deepcopy(WHOLE[name])
    scenario.steps.append({**scenario.steps[-1], "i": len(scenario.steps)})
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert lines[0].endswith(f"step {len(scenario.steps) - 1}: recorded, but every request has ended")


def test_recording_without_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario that is cut off is not passed over, wherever it stands in the file."""
    scenario = copy.deepcopy(VLLM)
    scenario.summary = {}
    status, lines = verdict(tmp_path, capsys, scenario, VLLM_V0, scenario)
    assert status == 1
    assert lines[0] == lines[2] == "vllm tiny: the file ends before the summary"
    assert lines[3] == "3 scenarios, 8 steps, 2 different"


@pytest.mark.parametrize("key", ["t", "add", "pre", "s"])
def test_preempting_step_counts(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of Sarathi-Serve's first preempting step its time, arrivals, victims and decodes are compared."""
    scenario = copy.deepcopy(PREEMPTING)
    scenario.steps[1][key] = changed(scenario.steps[1].get(key, []))
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert lines[0].startswith("sarathi-serve tiny: step 1: ")


def test_preemption_that_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step in which only we preempt differs."""
    scenario = copy.deepcopy(PREEMPTING)
    del scenario.steps[1]["pre"]
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert "pre: recorded [], simulated [1]" in lines[0]


def test_after_the_preemption_nothing_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There the engine starts the output over, which this project does not."""
    scenario = copy.deepcopy(PREEMPTING)
    scenario.steps[1]["wait"] = scenario.steps[2]["t"] = scenario.summary["end_t"] = 99
    assert verdict(tmp_path, capsys, scenario)[0] == 0


def test_assertion_that_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where TensorRT-LLM would stop nothing else is right, not even an empty step."""
    scenario = copy.deepcopy(ASSERTING)
    del scenario.steps[4]["assert"]
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert "step 4: assert: recorded [], simulated 1" in lines[0]


def test_unknown_scheduler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What no policy covers is different, not skipped."""
    scenario = copy.deepcopy(VLLM_V0)
    scenario.header["config"]["scheduler"] = "deadline"
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert lines[-1] == "1 scenarios, 0 steps, 1 different"


def test_a_queue_that_is_stuck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TGI waits for ever for blocks that there are not, with everybody behind; a recording that goes on differs."""
    scenario = copy.deepcopy(TGI)
    scenario.requests[1]["p"] = 40
    scenario.steps[0] |= {"s": [[0, 8]], "new": [0], "fin": [], "tok": 8, "ctx": 8, "dt": 1088, "rows": 1, "held": 3}
    scenario.steps[0]["wait"] = 1
    scenario.steps[1] |= {"t": 1088, "wait": 1}
    third = scenario.steps.pop()
    scenario.summary |= {"status": "stalled", "steps": 2, "end_t": 2107, "num_finished": 1, "total_out_tokens": 2}
    scenario.summary |= {"first_token_t": [1088, None, None], "finish_t": [2107, None, None], "out_tokens": [2, 0, 0]}
    assert verdict(tmp_path, capsys, scenario)[0] == 0
    scenario.steps.append(third)
    status, lines = verdict(tmp_path, capsys, scenario)
    assert (status, lines[0]) == (1, "tgi tiny: step 2: recorded, but nothing can run")


def test_a_model_that_pads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `tgi` does not model is different, not skipped."""
    scenario = copy.deepcopy(TGI)
    scenario.header["config"]["requires_padding"] = True
    status, lines = verdict(tmp_path, capsys, scenario)
    assert (status, lines[-1]) == (1, "1 scenarios, 0 steps, 1 different")


def test_nothing_to_replay_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file the usage, and status 2."""
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
