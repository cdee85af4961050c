"""The step-log replay on three logs made by hand from vLLM's rules, and on the same logs tampered with.

Blocks of 4 tokens, 8 tokens a step. In the first two logs 5 blocks can be handed out: request 0 needs a fourth block in
step 11 and takes request 1's, whose return and request 2's admission wait for memory.
"""

import csv
import gzip
import json

import pytest

from policies.vllm import Vllm
from simulator.core import Request
from simulator.costs import LinearCosts
from simulator.engine import simulate
from simulator.step_times import GpuTimes
from tests.step_logs import COUNTS, main

HEADER = ("step", "schedule_start_s", "update_end_s", *COUNTS, "prefills", "preempted")

SYNC = {
    "run": {"mode": "sync", "kv_blocks": 6},
    "trace": [(0, 10, 4), (9.6, 6, 4), (12, 8, 2)],  # request 1 comes too late for step 8, although before its start
    "steps": [
        (7, 0, 9, 1, 0, 0, 0, 0, "0:0:8", ""),
        (8, 10, 19, 0, 1, 0, 0, 0, "0:8:2", ""),
        (9, 20, 29, 2, 1, 1, 11, 11, "1:0:6", ""),
        (10, 30, 39, 1, 2, 2, 19, 12, "", ""),
        (11, 40, 49, 1, 2, 1, 13, 13, "", "1"),
        (12, 50, 59, 2, 0, 0, 0, 0, "1:0:8", ""),
        (13, 60, 69, 1, 1, 1, 9, 9, "2:0:7", ""),
        (14, 70, 79, 0, 1, 0, 0, 0, "2:7:1", ""),
        (15, 80, 89, 0, 1, 1, 9, 9, "", ""),
    ],
}
"""One step at a time: what step 11 finishes has left before step 12."""

ASYNC = {
    "run": {"mode": "async", "kv_blocks": 6},
    "trace": [(0, 10, 4), (5, 6, 4), (21.4, 8, 2)],  # by the engine's clock request 2 is there for step 10
    "steps": [
        (7, 0, 10.5, 1, 0, 0, 0, 0, "0:0:8", ""),
        (8, 1, 20.5, 0, 1, 0, 0, 0, "0:8:2", ""),
        (9, 11, 30.5, 1, 1, 1, 11, 11, "1:0:6", ""),  # request 1 came while 7 and 8 were in flight
        (10, 21, 40.5, 1, 2, 2, 19, 12, "", ""),
        (11, 31, 50.5, 1, 2, 1, 13, 13, "", "1"),  # the last token of request 0
        (12, 41, 51.5, 2, 1, 0, 0, 0, "", ""),  # whose blocks are not free before the update of step 11
        (13, 51, 61.5, 2, 0, 0, 0, 0, "1:0:8", ""),
        (14, 52, 71.5, 1, 1, 1, 9, 9, "2:0:7", ""),
        (15, 62, 81.5, 0, 2, 0, 0, 0, "2:7:1", ""),
        (16, 72, 91.5, 0, 1, 1, 9, 9, "", ""),
        (17, 82, 92, 0, 1, 0, 0, 0, "", ""),
    ],
}
"""schedule(k) right after update(k-2)."""

PIPELINE = {
    "run": {"mode": "async", "kv_blocks": 99, "pipeline": 2},
    "trace": [(0, 10, 3), (5, 3, 2), (6, 2, 1)],
    "steps": [
        (0, 0, 10.5, 1, 0, 0, 0, 0, "0:0:8", ""),
        (1, 1, 20.5, 0, 1, 0, 0, 0, "0:8:2", ""),
        (2, 2, 21.5, 0, 1, 0, 0, 0, "", ""),
        (3, 11, 31, 2, 1, 1, 11, 11, "1:0:3 2:0:2", ""),
        (4, 21, 32.5, 0, 3, 0, 0, 0, "", ""),
        (5, 22, 42, 0, 3, 2, 16, 12, "", ""),
        (6, 32, 43.5, 0, 2, 0, 0, 0, "", ""),
        (7, 33, 44, 0, 2, 0, 0, 0, "", ""),
        (8, 43, 44.5, 0, 0, 0, 0, 0, "", ""),
    ],
}
"""schedule(k) right after update(k-3); a token in step k, the next not before step k + 2."""

LOGS = pytest.mark.parametrize("log", [SYNC, ASYNC, PIPELINE], ids=["sync", "async", "pipeline"])


@pytest.fixture
def replayed(tmp_path, capsys):
    """(exit status, printed lines) of the tool on a log."""

    def run(log, *options):
        settings = {"budget": 8, "max_num_seqs": 4, "block": 4, "enable_prefix_caching": False, **log["run"]}
        (tmp_path / "run.json").write_text(json.dumps(settings), encoding="utf-8")
        with open(tmp_path / "trace.csv", "w", encoding="utf-8", newline="") as file:
            requests = [(arrival / 1e3, *tokens) for arrival, *tokens in log["trace"]]
            csv.writer(file).writerows([("arrival_s", "prompt_tokens", "output_tokens"), *requests])
        with gzip.open(tmp_path / "steps.csv.gz", "wt", encoding="utf-8", newline="") as file:
            steps = [(step, start / 1e3, end / 1e3, *rest) for step, start, end, *rest in log["steps"]]
            csv.writer(file).writerows([HEADER, *steps])
        status = main([str(tmp_path), *options])
        return status, capsys.readouterr().out.splitlines()

    return run


def with_cell(log, place, column, change):
    """The log with one cell changed."""
    steps = [list(row) for row in log["steps"]]
    cell = HEADER.index(column)
    steps[place][cell] = change(steps[place][cell])
    return {**log, "steps": steps}


@LOGS
def test_a_log_made_by_the_rules_is_reproduced(replayed, log):
    """Every column of every step."""
    status, lines = replayed(log)
    assert status == 0, lines
    assert lines[-1] == f"1 logs, {len(log['steps'])} steps, 0 different"


@pytest.mark.parametrize(("log", "arrivals"), [(SYNC, (0, 11, 12)), (ASYNC, (0, 5, 15))], ids=["sync", "async"])
def test_the_engine_runs_the_same_steps(log, arrivals):
    """On its own clock, 10 ms a step, and with arrivals that miss no step of the log; it runs no empty steps."""
    requests = [Request(i, arrivals[i] * 10**6, *log["trace"][i][1:]) for i in range(3)]
    asynchronous = log["run"]["mode"] == "async"
    policy = Vllm(8, max_num_seqs=4, enable_prefix_caching=False, async_scheduling=asynchronous)
    costs = LinearCosts(fixed_ns=10**7, per_token_ns=0, per_context_token_ns=0)
    steps = simulate(
        iter(requests), policy, GpuTimes(costs), block_size=4, num_blocks=log["run"]["kv_blocks"]
    ).iterations
    ran = list(zip(steps["num_decodes"].tolist(), steps["prefill_tokens"].tolist(), strict=True))
    logged = [(row[5], sum(int(chunk.split(":")[2]) for chunk in row[8].split())) for row in log["steps"]]
    assert ran == [step for step in logged if step != (0, 0)]
    assert steps["start_ns"].tolist() == [place * 10**7 for place in range(9)]


@LOGS
@pytest.mark.parametrize("column", COUNTS)
def test_a_changed_count_is_noticed(replayed, log, column):
    """In whichever row it is one more."""
    for place, row in enumerate(log["steps"]):
        status, lines = replayed(with_cell(log, place, column, lambda count: count + 1))
        assert status == 1, (row, lines)
        assert f"step {row[0]}: " in lines[0]


@LOGS
def test_changed_prefills_are_noticed(replayed, log):
    """Another request, another context, other tokens, one chunk more, or another order."""
    wrong = {"": "0:0:8", "0:0:8": "1:0:8", "0:8:2": "0:7:2", "1:0:6": "1:0:5", "1:0:3 2:0:2": "2:0:2 1:0:3"}
    for place, row in enumerate(log["steps"]):
        status, lines = replayed(with_cell(log, place, "prefills", lambda chunks: wrong.get(chunks, "")))
        assert status == 1, (row, lines)
        assert f"step {row[0]}: prefills: recorded " in lines[0]


@LOGS
def test_changed_preemptions_are_noticed(replayed, log):
    """One that was not, and one that was."""
    for place, row in enumerate(log["steps"]):
        status, lines = replayed(with_cell(log, place, "preempted", lambda victims: "" if victims else "0"))
        assert status == 1, (row, lines)
        assert f"step {row[0]}: preempted: recorded " in lines[0]


@LOGS
def test_another_number_of_steps_in_flight_is_noticed(replayed, log):
    """A step that completes only after the start of the next that needs its output."""
    for place, row in enumerate(log["steps"][:-4]):
        later = log["steps"][place + log["run"].get("pipeline", 0) + 2][1]
        status, lines = replayed(with_cell(log, place, "update_end_s", lambda _, later=later: later + 0.1))
        assert status == 1, (row, lines)
        assert "in_flight: recorded " in lines[0]


@pytest.mark.parametrize("log", [ASYNC, PIPELINE], ids=["async", "pipeline"])
def test_a_step_scheduled_later_than_it_could_be_is_noticed(replayed, log):
    """One that waited for outputs it does not need."""
    for place in range(len(log["steps"]) - 4):
        soon = log["steps"][place + 1][1]
        status, lines = replayed(with_cell(log, place, "update_end_s", lambda _, soon=soon: soon))
        assert status == 1
        assert "in_flight: recorded " in lines[0]


@pytest.mark.parametrize(("log", "mode"), [(SYNC, "async"), (ASYNC, "sync")])
def test_the_other_mode_is_noticed(replayed, log, mode):
    """Neither rule reproduces the other's log."""
    assert replayed({**log, "run": {**log["run"], "mode": mode}})[0] == 1


@LOGS
def test_a_log_that_ends_early_is_noticed(replayed, log):
    """Its steps agree, but requests are left over."""
    status, lines = replayed({**log, "steps": log["steps"][:4]})
    assert status == 1
    assert "requests of the trace are not finished" in lines[0]
    assert lines[-1] == "1 logs, 4 steps, 1 different"


@pytest.mark.parametrize(("log", "step", "by"), [(SYNC, 8, "0.400"), (ASYNC, 10, "0.400")])
def test_the_window_is_reported_and_binds(replayed, log, step, by):
    """An arrival at odds with the clocks is counted; outside the window it is a difference."""
    assert f"1 of 3 arrivals needed the window, at most {by} ms" in replayed(log)[1][0]
    status, lines = replayed(log, "--window", "0.3")
    assert status == 1
    assert f"step {step}: num_waiting: recorded " in lines[0]


def test_no_request_is_there_before_it_arrives_where_the_clock_is_one(replayed):
    """Without asynchronous scheduling the window reaches back only."""
    early = {**SYNC, "trace": [SYNC["trace"][0], (20.1, 6, 4), SYNC["trace"][2]]}
    assert replayed(early)[0] == 1


@pytest.mark.parametrize("setting", [{"enable_prefix_caching": True}, {"mode": "offline"}])
def test_what_is_not_simulated_is_said(replayed, setting):
    """And is no success."""
    status, lines = replayed({**SYNC, "run": {**SYNC["run"], **setting}})
    assert status == 1
    assert "not simulated" in lines[0]
