"""The README does what it says: its files and commands are taken from it and run."""

import csv
import re
import shlex
import sys

import pytest
from click.testing import CliRunner

from profiler.cli import main as profile_gpu
from profiler.imports.cli import main as import_costs
from profiler.measure_cli import measure_batches
from simulator.cli import simulate_trace
from simulator.conformance.__main__ import check
from simulator.errors import InputError
from simulator.pipeline.bubbles import CAUSES
from simulator.plugins import policy_names, setting_names
from simulator.price_cli import price_batches
from tests.house.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)


def commands(name):
    """The README's commands that begin with `name`."""
    return [line for line in COMMANDS if line.startswith(name)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with the files that the README shows."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    return tmp_path


def simulate(line):
    """Run a `simulate-trace` command line without drawing."""
    options = [*shlex.split(line)[1:], "--no-plots", "--no-report"]
    try:
        result = CliRunner().invoke(simulate_trace, options, catch_exceptions=False)
    except InputError as error:
        pytest.fail(f"{line}: {error}")
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("folder")
def test_a_table_for_a_gpu_that_is_not_there():
    """It is made without a GPU, simulated from, and the run says that nobody measured it."""
    lines = commands("import-costs")
    assert lines
    for line in lines:
        result = CliRunner().invoke(import_costs, shlex.split(line)[1:], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    (line,) = (line for line in commands("simulate-trace") if "--costs a100.csv" in line)
    assert "come from a model of its datasheet" in simulate(line)


def test_every_simulation_works(folder):
    """All commands that need no table of the user's own, in order; the last of a pair may read what the first wrote."""
    lines = [line for line in commands("simulate-trace") if ".csv --costs" not in line]
    assert len(lines) >= 7
    for line in lines:
        assert "finished" in simulate(line).lower()
    for name in ("summary.csv", "budget-512/iterations.csv", "budget-8192/requests.csv"):
        assert (folder / "budgets" / name).read_bytes() == (folder / "again" / name).read_bytes()


def test_the_example_policy_serves_the_shortest_prompt_first(folder):
    """Three requests at once and room for one: the prompts of 5, 20 and 100 tokens in this order."""
    (folder / "burst.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,100,2\n0,5,2\n0,20,2\n", encoding="utf-8"
    )
    simulate("simulate-trace burst.csv --policy my_policies:ShortestFirst --set max_batch_size=1 --out mine")
    with (folder / "mine/ShortestFirst/requests.csv").open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["finish_s"]))
    assert [row["prompt_tokens"] for row in rows] == ["5", "20", "100"]


@pytest.mark.usefixtures("folder")
def test_the_example_policy_conforms():
    """As the command says that checks it."""
    [line] = commands("python -m simulator.conformance")
    assert "ShortestFirst conforms" in CliRunner().invoke(check, shlex.split(line)[3:], catch_exceptions=False).output


def test_every_output_column_is_described(folder):
    """In backticks; the latencies of the summary, bubbles by cause and those of requests by their pattern."""
    simulate("simulate-trace mytrace.csv --policy vllm --out first")
    causes = rf"bubble_({'|'.join(CAUSES)})_fraction"
    patterned = re.compile(rf"(ttft|tpot|itl|e2e|queue|request_bubble)_(mean|p50|p90|p99)_s|{causes}")
    for name in ("summary.csv", "vllm/requests.csv", "vllm/iterations.csv", "vllm/itl_quantiles.csv"):
        columns = (folder / "first" / name).read_text(encoding="utf-8").splitlines()[0].split(",")
        missing = [column for column in columns if f"`{column}`" not in README and not patterned.fullmatch(column)]
        assert not missing, name


@pytest.mark.torch
def test_the_trial_without_a_gpu_works(folder):
    """Profile the tiny model on the CPU, then simulate with the table."""
    [profile] = [line for line in commands("profile-gpu") if "--device cpu" in line]
    result = CliRunner().invoke(profile_gpu, shlex.split(profile)[1:])
    assert result.exit_code == 0, result.output
    [line] = [line for line in commands("simulate-trace") if "tiny.csv" in line]
    simulate(line)
    assert (folder / "tiny/summary.csv").is_file()


def test_the_batches_can_be_priced(folder):
    """And every column of the result is described."""
    [line] = commands("price-batches")
    result = CliRunner().invoke(price_batches, shlex.split(line)[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    header, *rows = (folder / "priced.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3
    assert all(f"`{column}`" in README for column in header.split(","))


@pytest.mark.torch
def test_the_batches_can_be_measured_on_a_cpu(folder):
    """The trial without a GPU."""
    [line] = [line for line in commands("measure-batches") if "--device cpu" in line]
    result = CliRunner().invoke(measure_batches, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    header, *rows = (folder / "tiny-steps.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3
    assert all(f"`{column}`" in README for column in header.split(","))


@pytest.mark.parametrize(("name", "command"), [("profile-gpu", profile_gpu), ("measure-batches", measure_batches)])
def test_every_option_of_a_command_for_the_gpu_exists(name, command):
    """Also in the commands that only a GPU can run."""
    known = {option for parameter in command.params for option in parameter.opts}
    assert commands(name)
    for line in commands(name):
        assert {word for word in shlex.split(line) if word.startswith("--")} <= known


def test_every_target_exists():
    """`make` commands, also those in sentences."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = " ".join([*COMMANDS, *re.findall(r"`([^`\n]+)`", README)])
    for target in re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b", lines):
        if target != "python3":  # `apt install git make python3-venv`
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_linked_file_exists():
    """Links to files of this repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_policy_is_listed():
    """In the table, those that ship and the ready-made settings."""
    listed = set(re.findall(r"^\| `([\w-]+)` \|", README, re.MULTILINE))
    assert {*policy_names(), *setting_names()} <= listed
