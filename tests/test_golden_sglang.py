"""The replay of SGLang's recordings notices what differs: a tiny recording of each loop made by hand.

A step takes 1000 ns, 10 a token and 1 a token of context; chunks have four tokens, pages one.
"""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import Record, Scenario
from tests.test_golden import changed, recording, verdict

CONFIG: Record = {
    "chunked_prefill_size": 4,
    "max_prefill_tokens": 100,
    "max_running_requests": 4,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "enable_mixed_chunk": False,
    "disable_radix_cache": True,
    "page_size": 1,
    "max_total_num_tokens": 100,
    "context_len": 1000,
}
REQUESTS = [{"id": 0, "arr": 5, "p": 6, "o": 2, "ie": 1}]
LOWER = 0.7 - (0.7 - 0.14 * 0.7) / 600
SUMMARY: Record = {
    "status": "ok",
    "end_t": 3092,
    "num_retractions": 0,
    "num_finished": 1,
    "total_out_tokens": 2,
    "first_token_t": [2075],
    "finish_t": [3092],
    "out_tokens": [2],
    "retracted": [0],
}
CHUNK = {"k": "extend", "s": [[0, 4]], "dt": 1044, "idle": 1, "add": [0], "new": [0], "ck": 0, "tok": 4, "ctx": 4} | {
    "run": 1,
    "wait": 0,
    "free": 96,
    "free2": 96,
    "ratio": 0.7,
    "t": 5,
}
REST = {"k": "extend", "s": [[0, 2]], "dt": 1026, "tok": 2, "ctx": 6, "run": 1, "wait": 0} | {
    "free": 94,
    "free2": 94,
    "ratio": 0.7,
}
DECODE = {"k": "decode", "s": [0], "dt": 1017, "tok": 1, "ctx": 7, "run": 1, "wait": 0, "free": 93, "ratio": LOWER}
NOTHING = {"k": "none", "s": [], "dt": 0, "tok": 0, "ctx": 0, "run": 1, "wait": 0, "free": 93, "ratio": LOWER}

NORMAL = recording(
    "sglang",
    CONFIG,
    REQUESTS,
    [CHUNK, {**REST, "t": 1049}, {**DECODE, "t": 2075, "fin": [0], "free2": 100}],
    {**SUMMARY, "steps": 3},
)
# The chunk after the first is launched at once, and the pass that has nothing to launch applies the last token.
OVERLAP = recording(
    "sglang",
    {**CONFIG, "overlap": True},
    REQUESTS,
    [CHUNK, {**REST, "t": 5}, {**DECODE, "t": 1049, "free2": 93}, {**NOTHING, "t": 2075, "fin": [0], "free2": 100}],
    {**SUMMARY, "steps": 4},
)
WHOLE = {"normal": NORMAL, "overlap": OVERLAP}
FIELDS = ("i", "t", "dt", "idle", "k", "add", "s", "npf", "new", "res", "pre", "fin", "ck", "full")
COUNTS = ("tok", "ctx", "run", "wait", "free", "free2", "ratio")


def test_recordings_are_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both loops, to the end."""
    status, lines = verdict(tmp_path, capsys, *WHOLE.values())
    assert (status, lines) == (0, ["sglang tiny: ok", "sglang tiny: ok", "2 scenarios, 7 steps, 0 different"])


@pytest.mark.parametrize("key", [*FIELDS, *COUNTS])
@pytest.mark.parametrize("name", WHOLE)
def test_every_field_of_a_pass_counts(name: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In each pass, also where the recording leaves a field out."""
    for place in range(len(WHOLE[name].steps)):
        scenario = copy.deepcopy(WHOLE[name])
        scenario.steps[place][key] = other(scenario.steps[place].get(key, []))
        status, lines = verdict(tmp_path, capsys, scenario)
        assert status == 1
        assert lines[0].startswith(f"sglang tiny: step {place}: ")


@pytest.mark.parametrize("key", [*SUMMARY, "steps", "clipped_max_new"])
@pytest.mark.parametrize("name", WHOLE)
def test_every_field_of_the_summary_counts(
    name: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, times, fates and limits that were cut."""
    scenario = copy.deepcopy(WHOLE[name])
    scenario.summary[key] = other(scenario.summary.get(key, []))
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 1
    assert f"summary: {key}: recorded " in lines[0]


def test_limit_that_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that declares more than the pool holds: 100 less its prompt, a page and one."""
    scenario: Scenario = copy.deepcopy(NORMAL)
    scenario.requests[0].update(mnt=500, ie=0)
    scenario.summary["clipped_max_new"] = {"0": 92}
    assert verdict(tmp_path, capsys, scenario)[1][0] == "sglang tiny: ok"


def test_a_prompt_that_sglang_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where two prompts are cut in one step the comparison ends."""
    scenario = copy.deepcopy(NORMAL)
    scenario.requests.append({"id": 1, "arr": 5, "p": 6, "o": 2})
    scenario.steps[0]["s"] = [[0, 3], [1, 1]]
    status, lines = verdict(tmp_path, capsys, scenario)
    assert status == 0
    assert lines[0] == "sglang tiny: ok up to step 0 of 3, where SGLang cuts two prompts and forgets one"


def other(value: Any) -> Any:
    """A value that differs; the ratio by the last bit."""
    return value + 2**-52 if isinstance(value, float) else "other" if isinstance(value, str) else changed(value)
