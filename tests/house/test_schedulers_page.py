"""`docs/schedulers.md` covers all policies, and its measured table is what the experiment gives."""

import importlib.util
import re
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner

from simulator.cli import simulate_trace
from simulator.plugins import policy_names, setting_names
from tests.house.paths import ROOT

PAGE = (ROOT / "docs/schedulers.md").read_text(encoding="utf-8")
EXPERIMENT = yaml.safe_load((ROOT / "policies/all.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """The script that writes the table."""
    spec = importlib.util.spec_from_file_location("schedulers_table", ROOT / "bench/schedulers_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described() -> list[list[str]]:
    """The tables before the measured one, a list of lines each."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.partition("## Measured")[0], re.MULTILINE)
    return [table.splitlines() for table in tables]


def test_every_policy_has_a_row_in_every_table() -> None:
    """Those that ship and the ready-made settings: what they run, their memory, their source."""
    assert len(described()) == 3
    for lines in described():
        names = {match[1] for line in lines if (match := re.match(r"\| `([\w-]+)`", line))}
        assert {*policy_names(), *setting_names()} <= names


def test_every_row_has_every_column() -> None:
    """No cell is forgotten, and none has a bar in it; the tables have the same rows."""
    for lines in described():
        assert len({line.count("|") for line in lines}) == 1
    assert len({tuple(line.split(" | ")[0] for line in lines) for lines in described()}) == 1


def test_the_measured_table_is_what_is_measured(tables: ModuleType, tmp_path, monkeypatch) -> None:
    """`make schedulers` writes it; this runs the same experiment, to the last digit shown."""
    monkeypatch.chdir(ROOT)
    options = ["policies/all.yaml", "--out", str(tmp_path / "all"), "--no-plots", "--no-report", "--quiet"]
    assert CliRunner().invoke(simulate_trace, options, catch_exceptions=False).exit_code == 0
    _, shown, _ = tables.parts(PAGE)
    assert shown == tables.measured(tmp_path / "all"), "make schedulers"
    assert shown.count("\n") == 2 + len(EXPERIMENT["policies"])


def test_every_linked_file_exists() -> None:
    """Links are relative to the page."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
