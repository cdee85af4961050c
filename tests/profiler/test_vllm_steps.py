"""The step logger on a stand-in for vLLM, against logs made by hand from vLLM's rules (tests/test_step_logs.py)."""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from profiler import vllm_steps
from profiler.step_log import LIMIT_VARIABLE, PATH_VARIABLE, StepLog
from simulator.errors import InputError
from simulator.step_log_rows import CLOCKS, COLUMNS
from tests.house.paths import ROOT
from tests.profiler import vllm_stand_in as stand_in
from tests.test_step_logs import ASYNC, SYNC

ARRIVALS = {"sync": [(0, 10, 4), (2, 6, 4), (2, 8, 2)], "async": [(0, 10, 4), (2, 6, 4), (3, 8, 2)]}
"""Those of the logs made by hand, by step."""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where the log goes; the stand-in is vLLM."""
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "steps.csv.gz"))
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    yield tmp_path / "steps.csv.gz"
    for name in vllm_steps.BASES:
        vars(vllm_steps).pop(name, None)


def rows_of(path):
    """The log's rows."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def made(**changes):
    """A logging scheduler, as vLLM makes it."""
    return stand_in.made_by_engine(vllm_steps.StepLogger, stand_in.config(**changes))


def logged(path, arrivals, in_flight=1, **changes):
    """The rows of a server that saw these arrivals."""
    scheduler = made(**changes)
    stand_in.serve(scheduler, arrivals, in_flight)
    scheduler.shutdown()
    return rows_of(path)


def composition(rows):
    """What is left without step numbers and clocks."""
    return [tuple(row[name] for name in COLUMNS[5:]) for row in rows]


def by_hand(log):
    """The same of a log of tests/test_step_logs.py."""
    return [tuple(str(cell) for cell in step[3:]) for step in log["steps"]]


def test_a_synchronous_server_logs_what_the_rules_prescribe(path):
    """Chunks, a preemption and the victim's return as a prefill of all that is known."""
    assert composition(logged(path, ARRIVALS["sync"])) == by_hand(SYNC)


def test_an_asynchronous_server_logs_what_the_rules_prescribe(path):
    """schedule(k + 1) runs before update(k). Empty steps are rows too: a last one tells the workers who finished."""
    rows = composition(logged(path, ARRIVALS["async"], in_flight=2, asynchronous=True))
    assert rows == [*by_hand(ASYNC), ("0", "0", "0", "0", "0", "", "")]


def test_a_resumed_request_among_the_new_ones_is_its_old_self(path):
    """As vLLM's second model runner has it: the number stays, and the tokens to recompute include generated ones."""
    assert composition(logged(path, ARRIVALS["sync"], resumed_as_new=True)) == by_hand(SYNC)


def test_an_aborted_or_preempted_prompt_is_forgotten(path):
    """What was half computed does not make a later step look at every request."""
    log = StepLog(path, 10**6)
    recorder = vllm_steps.Recorder(log)
    for place, request_id in enumerate("ab"):
        output = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=request_id, num_computed_tokens=0)],
            scheduled_cached_reqs=stand_in.Cached(),
            num_scheduled_tokens={request_id: 4},
            total_num_scheduled_tokens=4,
            finished_req_ids=set(),
        )
        recorder.scheduled(output, {request_id: stand_in.Request(request_id, 20, 1)}, 0, 0, 1, place)
    recorder.preempted.append("a")
    empty = SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=stand_in.Cached(),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        finished_req_ids={"b"},
    )
    recorder.scheduled(empty, {}, 0, 0, 1, 1)
    log.close()
    assert not recorder._prefilling


@pytest.mark.parametrize(("asynchronous", "in_flight"), [(False, 1), (True, 2)])
def test_times_are_in_order_and_of_the_own_step(path, asynchronous, in_flight):
    """schedule, then output, then update; with two steps in flight the next is scheduled before the output."""
    rows = logged(path, ARRIVALS["async"], in_flight, asynchronous=asynchronous)
    clocks = [[float(row[name]) for name in CLOCKS] for row in rows]
    assert [row["step"] for row in rows] == [str(step) for step in range(len(rows))]
    assert all(times == sorted(times) and times[0] >= 0 for times in clocks)
    overlapping = [second[1] <= first[2] for first, second in pairwise(clocks)]
    assert sum(overlapping) == (len(rows) - 1 if asynchronous else 0)


def test_the_base_is_the_class_that_vllm_would_take(path):
    """By its own rule, `SchedulerConfig.get_scheduler_cls`."""
    scheduler = made(asynchronous=True)
    scheduler.shutdown()
    path.unlink()
    assert isinstance(scheduler, stand_in.AsyncScheduler)
    assert not isinstance(made(), stand_in.AsyncScheduler)
    assert issubclass(vllm_steps.AsyncStepLogger, stand_in.AsyncScheduler)


@pytest.mark.usefixtures("path")
def test_shutdown_reaches_vllm():
    """The log ends, and the engine's own shutdown runs."""
    scheduler = made()
    scheduler.shutdown()
    scheduler.shutdown()
    assert scheduler.is_shut_down


def test_cached_prompt_tokens_are_context(path):
    """A prefix-cache hit is in context_before, not among the tokens."""
    log = StepLog(path, 10**6)
    recorder = vllm_steps.Recorder(log)
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="a", num_computed_tokens=16)],
        scheduled_cached_reqs=stand_in.Cached(),
        num_scheduled_tokens={"a": 4},
        total_num_scheduled_tokens=4,
        finished_req_ids=set(),
    )
    recorder.scheduled(output, {"a": stand_in.Request("a", 20, 1)}, 0, 0, 1, 0)
    recorder.updated(output, 0, 0)
    log.close()
    assert rows_of(path)[0]["prefills"] == "0:16:4"


def test_a_step_without_an_output_is_left_out(path):
    """And does not give its row to another."""
    scheduler = made()
    scheduler.add_request(stand_in.Request("a", 4, 3))
    scheduler.update_from_output(scheduler.schedule(), None)
    scheduler.schedule()
    scheduler.update_from_output(scheduler.schedule(), None)
    scheduler.shutdown()
    assert [row["step"] for row in rows_of(path)] == ["0", "2"]


def test_data_parallel_engines_write_files_of_their_own(path):
    """Named by rank."""
    made(ranks=2, rank=1).shutdown()
    assert (path.parent / "steps.dp1.csv.gz").is_file()


def test_the_log_ends_at_its_limit_and_the_server_does_not(path, caplog):
    """With a warning; what is there is whole."""
    log = StepLog(path, 200, period_s=0.01)
    for step in range(1000):
        log.add(f"{step},{step * 7919 % 1000}")
        time.sleep(0 if step % 100 else 0.02)
    log.close()
    assert path.stat().st_size <= 200
    assert "larger than 0.0002 MB" in caplog.text
    with gzip.open(path, "rt") as file:
        assert file.readline().strip() == ",".join(COLUMNS)


def test_an_unknown_scheduler_output_ends_the_log_not_the_server(path, monkeypatch, caplog):
    """As of a version that renamed something."""
    monkeypatch.setattr(stand_in, "Cached", lambda *_: SimpleNamespace(num_computed_tokens=[]))
    assert logged(path, ARRIVALS["sync"]) == []
    assert "ends here: not the scheduler output it knows" in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (PATH_VARIABLE, "", "CHUNKWISE_STEP_LOG: not set"),
        (PATH_VARIABLE, "steps.csv", "must end in .csv.gz"),
        (PATH_VARIABLE, "/nowhere/steps.csv.gz", "there is no folder /nowhere"),
        (PATH_VARIABLE, __file__ + ".csv.gz", "exists already"),
        (LIMIT_VARIABLE, "much", "'much' is not a positive number"),
        (LIMIT_VARIABLE, "-1", "'-1' is not a positive number"),
        (LIMIT_VARIABLE, "inf", "'inf' is not a positive number"),
    ],
)
def test_a_wrong_setting_is_refused_before_vllm_starts(path, monkeypatch, variable, value, message):
    """In one sentence with the variable's name."""
    if "exists" in message:
        path.touch()
    monkeypatch.setenv(variable, str(path) if "exists" in message else value)
    with pytest.raises(InputError, match=message) as error:
        made()
    assert variable in str(error.value)


@pytest.mark.usefixtures("path")
def test_draft_tokens_are_refused():
    """Speculative decoding has no columns."""
    with pytest.raises(InputError, match="without speculative decoding"):
        made(draft=SimpleNamespace())


@pytest.mark.usefixtures("path")
def test_a_scheduler_without_the_methods_is_refused():
    """An old or foreign class is named with what it lacks."""
    with pytest.raises(InputError, match=r"object has no add_request, schedule, _preempt_request"):
        vllm_steps.logging_scheduler(object)


def test_without_vllm_the_reason_is_said(monkeypatch):
    """Not a bare ImportError."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InputError, match="cannot be imported"):
        _ = vllm_steps.SyncStepLogger


SERVER = """
import multiprocessing, os, signal, sys, time
from tests.profiler import vllm_stand_in as stand_in
stand_in.install()
from profiler.vllm_steps import StepLogger

def engine():
    scheduler = stand_in.made_by_engine(StepLogger, stand_in.config())
    stand_in.serve(scheduler, [(0, 10, 4)], 1)
    return scheduler

if sys.argv[1] == "forked":
    child = multiprocessing.get_context("fork").Process(target=engine)
    child.start()
    sys.exit(child.join())
scheduler = engine()
if sys.argv[1] == "killed":
    time.sleep(1.5)
    scheduler.add_request(stand_in.Request("late", 4, 4))
    scheduler.update_from_output(scheduler.schedule(), None)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "status"), [("ended", 0), ("killed", -signal.SIGKILL), ("forked", 0)])
def test_what_was_logged_survives_the_process(path, end, status):
    """All of it when the process ends; when it is killed, all but the last second, in a file that can be read."""
    done = subprocess.run([sys.executable, "-c", SERVER, end], cwd=ROOT, env=dict(os.environ), timeout=60)
    assert done.returncode == status
    assert [row["prefills"] for row in rows_of(path)] == ["0:0:8", "0:8:2", "", "", ""]


def test_nothing_heavy_is_imported():
    """Neither vLLM nor torch, nor anything that is not Python's own or the project's."""
    code = "import json, sys, profiler.vllm_steps; print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    foreign = set(json.loads(done.stdout)) - sys.stdlib_module_names - {"profiler", "simulator"}
    assert foreign <= {"__main__", "__mp_main__"}
