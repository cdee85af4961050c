"""`docs/write-a-policy.md` does what it says: its files and commands are taken from it and run."""

import re
import shlex
import sys

import pytest
from click.testing import CliRunner

from simulator.cli import simulate_trace
from simulator.conformance import ConformanceError
from simulator.conformance.__main__ import check
from simulator.core import View
from simulator.policy import PolicyBase
from simulator.promises import Promises
from tests.house.paths import ROOT
from tests.simulator.test_properties import MISTAKES

PAGE = (ROOT / "docs/write-a-policy.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```sh\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", PAGE, re.MULTILINE | re.DOTALL)
NAME = "ShortestPromptFirst"
MODULES = ("my_policies", "too_greedy", "promising", "every_few")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with the files that the page shows."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # too_greedy imports my_policies, as `python -m` lets it
    for module in MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    yield tmp_path
    for module in MODULES:
        sys.modules.pop(module, None)


def output(line):
    """What a command of the page prints, on either stream."""
    if line.startswith("python -m simulator.conformance "):
        try:
            return CliRunner().invoke(check, shlex.split(line)[3:], catch_exceptions=False).output
        except ConformanceError as error:
            return f"python -m simulator.conformance: {error}\n"
    options = [*shlex.split(line)[1:], "--no-plots", "--no-report"]
    result = CliRunner().invoke(simulate_trace, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_command_prints_what_is_shown(folder):
    """In order; where no output is shown the simulation has to finish."""
    assert len(BLOCKS) >= 4
    for commands, shown in BLOCKS:
        printed = [output(line) for line in commands.splitlines()]
        if shown:
            assert "".join(printed) == shown
        else:
            assert all("5/5" in text for text in printed)
    assert (folder / "budgets/spf-256/requests.csv").is_file()


def test_the_policy_is_20_lines():
    """From the decorator to the end, blank lines not counted."""
    lines = FILES["my_policies.py"].partition("@dataclass")[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= 20


def test_every_refusal_is_shown():
    """The scheduler's messages, word for word."""
    for _, message in MISTAKES:
        assert message.replace("Misbehaving", NAME) in PAGE


def test_everything_a_policy_sees_and_may_define_is_described():
    """Attributes and methods of the view and of the policy interface, and what can be promised."""
    seen = {*View.__slots__, *(name for name in vars(View) if not name.startswith("_"))}
    defined = {name for name in vars(PolicyBase) if not name.startswith("_")} - {"plan"}
    for name in seen | defined:
        assert re.search(rf"`{name}(\(.*?\))?`", PAGE), name
    for name in Promises.__dataclass_fields__:
        assert f"| `{name}` |" in PAGE, name


@pytest.mark.usefixtures("folder")
def test_the_example_of_promises_keeps_them():
    """With limits that the cases reach."""
    arguments = ["promising:Promising", "--set", "token_budget=16", "--set", "max_num_seqs=4"]
    printed = CliRunner().invoke(check, arguments, catch_exceptions=False).output
    assert "Promising conforms" in printed
    assert "note:" not in printed


def test_every_linked_file_exists():
    """Links are relative to the page."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
