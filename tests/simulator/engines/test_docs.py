"""`docs/engines.md` describes every key, and its example works."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from simulator.engines.profile import Aftermath, CudaGraphs, EngineProfile, Handing, HostTime, Launch, Mode, load_engine
from simulator.power_limit import PowerLimit
from tests.house.paths import ROOT
from tests.simulator.conftest import Simulate

PAGE = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^`plain-host.yaml`:\n\n```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("kind", [EngineProfile, Mode, Launch, CudaGraphs, PowerLimit, Aftermath, Handing, HostTime])
def test_every_key_is_described(kind: type) -> None:
    """In backticks, alone or in a mapping."""
    words = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", code)}
    assert {field.name for field in fields(kind)} - words == set()


def test_the_example_runs(simulate: Simulate, here: Path) -> None:
    """As a file beside the experiment."""
    (here / "plain-host.yaml").write_text(*EXAMPLE)
    profile = load_engine("plain-host.yaml", beside=here)
    assert profile is not None
    assert profile.cuda_graphs.captured(None)[-1] == 256
    options = [
        "--policy",
        "vllm",
        "--set",
        "async_scheduling=false",
        "--engine",
        "plain-host.yaml",
        "--out",
        "plain-host",
    ]
    assert simulate("tiny.yaml", *options).code == 0


def test_links_lead_somewhere() -> None:
    """Relative to the page."""
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
