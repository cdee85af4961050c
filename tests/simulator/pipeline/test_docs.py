"""`docs/pipelines.md` describes what there is, and its command works."""

import re
import shlex
from pathlib import Path

import pandas as pd

from simulator.pipeline.bubbles import CAUSES
from tests.house.paths import ROOT
from tests.simulator.conftest import Simulate, write_yaml

PAGE = (ROOT / "docs/pipelines.md").read_text(encoding="utf-8")


def described(column: str) -> bool:
    """By its name, or by the pattern of a cause."""
    cause = next((cause for cause in CAUSES if cause in column), None)
    return f"`{column}`" in PAGE or (f"`{column.replace(cause, 'X')}`" in PAGE if cause else False)


def test_every_cause_and_column_is_described(simulate: Simulate, here: Path) -> None:
    """Of `bubbles.csv`, and the new ones of `summary.csv` and `requests.csv`; a row a stage, and conservation."""
    write_yaml(here / "tiny.yaml", trace="tiny.csv", costs={"linear": {"fixed_ns": 10**7}}, policies=["vllm"])
    assert simulate("tiny.yaml", "--pipeline", 4, "--out", "run").code == 0
    rows = pd.read_csv(here / "run/bubbles.csv")
    summary = pd.read_csv(here / "run/summary.csv")
    assert all(f"`{cause}`" in PAGE for cause in CAUSES)
    assert [column for column in rows.columns if not described(column)] == []
    new = [column for column in summary.columns if "bubble" in column or column == "idle_fraction"]
    assert len(new) == 2 + len(CAUSES) + 4
    assert [column for column in new if not described(column) and "request_bubble_p" not in column] == []
    assert "bubble_s" in pd.read_csv(here / "run/vllm/requests.csv")
    assert rows["stage"].tolist() == [0, 1, 2, 3]
    assert (rows.busy_s + rows.bubble_s + rows.idle_s - rows.span_s).abs().max() < 1e-9
    assert abs(rows.bubble_s.sum() / rows.span_s.sum() - summary.bubble_fraction[0]) < 1e-9


def test_the_commands_work(simulate: Simulate) -> None:
    """As they are shown, on fewer requests."""
    commands = re.findall(r"^simulate-trace (.*)", PAGE.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert simulate(*shlex.split(command), "--limit", 20).code == 0


def test_every_linked_file_exists() -> None:
    """Links and pictures are relative to the page."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
