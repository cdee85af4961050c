"""The pages of engines and of disaggregation: their files and commands are taken from them and run, on few requests."""

import re
import shlex

import pytest
from click.testing import CliRunner

from simulator.cli import simulate_trace
from tests.house.paths import ROOT

PAGES = ("disaggregation", "sglang", "tensorrt-llm", "tgi")


@pytest.mark.parametrize("name", PAGES)
def test_every_command_works(name: str, tmp_path, monkeypatch) -> None:
    """All requests finish."""
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for file, text in re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (tmp_path / file).write_text(text, encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.DOTALL) for line in block.splitlines()]
    assert lines
    for line in lines:
        options = [*shlex.split(line)[1:], "--limit", "20", "--no-plots", "--no-report"]
        result = CliRunner().invoke(simulate_trace, options, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert re.search(r"\b(20/20|3/3)\b", result.output)
