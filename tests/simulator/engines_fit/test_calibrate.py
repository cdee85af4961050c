"""`calibrate-engine` from logs and folders to a profile that simulate-trace takes."""

import json
import re

import pytest
import yaml

from simulator.engines.cli import main
from simulator.engines.profile import load_engine
from simulator.named_tables import find_table
from simulator.table_costs import TableCosts
from tests.simulator.engines_fit.synthetic import ASYNC, SYNC, batches, requests_csv, run, write_log

STEPS = batches(1500)
COSTS = "h200/llama-3.1-8b"


@pytest.fixture(scope="module")
def clocks():
    """The steps at the prices of the table, without and with steps in flight."""
    table = TableCosts(find_table(COSTS))
    return {flag: run(STEPS, ASYNC if flag else SYNC, in_flight=flag, costs=table) for flag in (False, True)}


@pytest.fixture
def here(tmp_path, monkeypatch, clocks):
    """The current folder, with `sync` and `async`, folders of a log and its requests."""
    monkeypatch.chdir(tmp_path)
    for name, in_flight in (("sync", False), ("async", True)):
        (tmp_path / name).mkdir()
        write_log(tmp_path / name / "steps.csv.gz", STEPS, clocks[in_flight])
        delays = (0.0036, 0.0) if in_flight else (0.0004, 0.0005)
        requests_csv(tmp_path / name / "requests.csv", STEPS, clocks[in_flight], *delays)
    return tmp_path


@pytest.fixture
def calibrate(monkeypatch, capsys):
    """The command with these arguments: exit status, output, error."""

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["calibrate-engine", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return command


def test_both_modes_go_into_one_profile(here, calibrate):
    """Which loads, under the name of its file, and says what it was fitted to."""
    code, out, err = calibrate("sync", "async", "--costs", COSTS, "--out", "mine.yaml")
    assert (code, err) == (0, "")
    assert "written to mine.yaml; simulate-trace --engine mine.yaml uses it" in out
    profile = load_engine(str(here / "mine.yaml"))
    assert profile.name == "mine"
    assert profile.synchronous.schedule.step_us == pytest.approx(90, rel=0.05)
    assert profile.synchronous.full.prepare.step_us == pytest.approx(
        1200, rel=0.15
    )  # the table's heat is not in the log
    assert profile.synchronous.arrival_us == pytest.approx(400, abs=100)
    assert profile.synchronous.delivery_us == pytest.approx(500, abs=1)
    assert profile.asynchronous.update.sequence_us == pytest.approx(5, rel=0.1)
    assert profile.asynchronous.arrival_us == pytest.approx(3600, abs=200)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d: 50% of the steps, in blocks of 50, of sync \(1,500 steps; costs .*\)",
                        profile.synchronous.fit)  # fmt: skip
    assert "asynchronous.arrival_us holds the sum of arrival and delivery" in out


def test_a_mode_without_a_log_is_that_of_the_start(here, calibrate):
    """And a profile can start from one of the user's."""
    assert calibrate("sync", "--costs", COSTS, "--out", "first.yaml")[0] == 0
    code, out, _ = calibrate("async/steps.csv.gz", "--costs", COSTS, "--engine", "first.yaml", "--out", "second.yaml")
    assert code == 0
    assert "not in the logs: synchronous: no such log; kept as it was" in out
    assert "not in the logs: asynchronous.arrival_us, delivery_us: need the requests' times (--requests)" in out
    first, second = (load_engine(str(here / name)) for name in ("first.yaml", "second.yaml"))
    assert second.synchronous == first.synchronous
    assert second.asynchronous.arrival_us == first.asynchronous.arrival_us
    assert second.asynchronous.schedule != first.asynchronous.schedule


def test_without_out_the_profile_is_printed(here, calibrate):
    """As YAML after the tables."""
    code, out, _ = calibrate("sync", "--costs", COSTS, "--hold-out", "0", "--name", "host-7")
    assert code == 0
    assert "held out" not in out
    keys = yaml.safe_load(out[out.index("\nname: ") :])
    assert keys["name"] == "host-7"
    assert "all steps of sync" in keys["synchronous"]["fit"]
    assert sorted(path.name for path in here.iterdir()) == ["async", "sync"]


@pytest.mark.usefixtures("here")
def test_the_same_logs_give_the_same_profile(calibrate):
    """To the byte, on one day."""
    options = ("sync", "async", "--costs", COSTS, "--name", "same")
    assert calibrate(*options) == calibrate(*options)


def test_limits_of_a_folder_are_used(here, calibrate):
    """`max_num_seqs` 64 leaves captured sizes up to 128: more steps run eagerly."""
    before = calibrate("sync", "--costs", COSTS)[1]
    (here / "sync/run.json").write_text(json.dumps({"max_num_seqs": 64}, indent="\t"), encoding="utf-8")
    after = calibrate("sync", "--costs", COSTS)[1]
    by_option = calibrate("sync", "--costs", COSTS, "--max-num-seqs", "1024")[1]

    def eager(text):
        return sum(
            int(line.split("eager")[1].split()[0].replace(",", "")) for line in text.splitlines() if "- eager" in line
        )

    assert eager(after) > eager(before)
    assert eager(by_option) == eager(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sync",), "Missing option '--costs'"),
        (("gone", "--costs", COSTS), "Path 'gone' does not exist"),
        (
            ("sync", "--costs", "h200/llama-3.1-9b"),
            'no cost table "h200/llama-3.1-9b"; did you mean "h200/llama-3.1-8b',
        ),
        (
            ("sync", "--costs", COSTS, "--engine", "vllm-0.22"),
            'unknown engine profile "vllm-0.22"; did you mean "vllm-0.23"',
        ),
        (("sync", "--costs", COSTS, "--engine", "none"), "--engine: none has no parts to fit; name a profile"),
        (("sync", "async", "--costs", COSTS, "--costs", COSTS, "--costs", COSTS), "--costs: 3 for 2 step logs"),
        (("sync", "async", "--costs", COSTS, "--requests", "sync/requests.csv"), "--requests: 1 for 2 step logs"),
        (("sync", "--costs", COSTS, "--out", "there.yaml"), "there.yaml exists; --force overwrites it"),
        (("sync", "--costs", COSTS, "--out", "no/folder.yaml"), "cannot write no/folder.yaml: No such file"),
        (("sync", "--costs", "h200/llama-33b"), "are these the costs of the log's model and GPU: h200/llama-33b?"),
        (("empty", "--costs", COSTS), "empty: no steps.csv.gz in this folder"),
        (("known", "--costs", COSTS), "a run of llama-13b, but h200/llama-3.1-8b has the costs of llama-3.1-8b"),
        (("pair", "--costs", COSTS), "run.json, tensor: ran on 2 tensor-parallel GPUs, h200/llama-3.1-8b is of 1"),
        (("stages", "--costs", COSTS), "run.json, pipeline: ran on 2 stages; steps of pipeline stages overlap"),
        (("stages.csv", "--costs", COSTS), "stages.csv: three and more steps are under way at a time"),
        (("sync", "--costs", COSTS + "@tp2", "--network", "h200-nvlin"), 'did you mean "h200-nvlink"'),
        (("backwards.csv", "--costs", COSTS), "backwards.csv, line 3: schedule_start_s is before that of step 0"),
        (("sync/requests.csv", "--costs", COSTS), "sync/requests.csv"),
        (("sync/steps.csv.gz", "--costs", COSTS, "--requests", "async/requests.csv"), "does not fit the log"),
    ],
)
def test_a_mistake_is_one_message(here, calibrate, arguments, message):
    """Exit status 2, nothing written."""
    (here / "there.yaml").write_text("mine", encoding="utf-8")
    (here / "empty").mkdir()
    (here / "known").mkdir()
    (here / "known/steps.csv.gz").write_bytes((here / "sync/steps.csv.gz").read_bytes())
    (here / "known/run.json").write_text('{"model": "llama-13b"}', encoding="utf-8")
    for name, degree in (("pair", "tensor"), ("stages", "pipeline")):
        (here / name).mkdir()
        (here / name / "steps.csv.gz").write_bytes((here / "sync/steps.csv.gz").read_bytes())
        (here / name / "run.json").write_text(json.dumps({degree: 2}), encoding="utf-8")
    header = ",".join(("step", "schedule_start_s", "schedule_end_s", "output_ready_s", "update_end_s", "num_waiting",
                       "num_running", "num_decodes", "decode_context_sum", "decode_context_max", "prefills",
                       "preempted"))  # fmt: skip
    rows = ["0,5,6,7,8,0,1,1,9,9,,", "1,4,6,7,8,0,1,1,9,9,,"]
    (here / "backwards.csv").write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    three = [f"{step},{step},{step},{step + 2.5},{step + 2.5},0,1,1,9,9,," for step in range(9)]
    (here / "stages.csv").write_text("\n".join([header, *three, ""]), encoding="utf-8")
    before = sorted(here.iterdir())
    code, _, err = calibrate(*arguments)
    assert code == 2
    assert "Traceback" not in err
    assert message in " ".join(err.split())
    assert sorted(here.iterdir()) == before
    assert (here / "there.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(("requests", "room"), [(1, "do not bound it"), (2, r"leave [\d.]+ ms of room")])
def test_few_requests_tell_no_latency(here, calibrate, requests, room):
    """The first came before the log began; of the second it is known to some milliseconds."""
    path = here / "sync/requests.csv"
    lines = path.read_text(encoding="utf-8").splitlines()[: 1 + requests]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    code, out, _ = calibrate("sync", "--costs", COSTS, "--out", "few.yaml")
    assert code == 0
    assert re.search(rf"not in the logs: synchronous\.arrival_us, delivery_us: the requests {room}; kept", out)
    found, start = (load_engine(name).synchronous for name in (str(here / "few.yaml"), "vllm-0.23"))
    assert (found.arrival_us, found.delivery_us) == (start.arrival_us, start.delivery_us)


def test_one_step_leaves_all_as_it_was(here, calibrate):
    """Every part is named, and the profile is the start's but for its name and its note."""
    step = batches(1)
    write_log(here / "one.csv.gz", step, run(step, SYNC, in_flight=False))
    code, out, err = calibrate("one.csv.gz", "--costs", COSTS, "--out", "one.yaml")
    assert (code, err) == (0, "")
    for part in ("schedule", "update", "between", "full", "piecewise", "eager", "arrival_us, delivery_us"):
        assert f"not in the logs: synchronous.{part}: " in out
    start, found = load_engine("vllm-0.23"), load_engine(str(here / "one.yaml"))
    for name in ("schedule", "update", "between", "full", "piecewise", "eager", "aftermath", "arrival_us"):
        assert getattr(found.synchronous, name) == getattr(start.synchronous, name)
    assert found.asynchronous == start.asynchronous


def test_ranks_exchange_by_the_network_that_is_named(here, calibrate):
    """A log at the prices of a rank without exchanges: by a network that takes no time to speak of it is what it was
    made with, by the usual one steps come out too long."""
    (here / "free.yaml").write_text(
        "{name: free, about: no time, link: {latency_us: 0, gigabytes_per_s: 1000000}}", encoding="utf-8"
    )
    table = TableCosts(find_table(COSTS + "@tp2"))
    steps = batches(600)
    write_log(here / "tp2.csv.gz", steps, run(steps, ASYNC, in_flight=True, costs=table, workers=True))

    def gpu_us(*options):
        assert calibrate("tp2.csv.gz", "--costs", COSTS + "@tp2", "--out", "tp2.yaml", "--force", *options)[0] == 0
        return load_engine(str(here / "tp2.yaml")).asynchronous.full.gpu.step_us

    assert gpu_us("--network", "free.yaml") == pytest.approx(140, rel=0.2)
    assert gpu_us() < 60
