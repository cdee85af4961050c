"""The command line in a folder of its own, with a tiny trace and costs that need no table."""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from simulator.cli import main

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,40,5\n0.5,300,3\n1,20,8\n2,64,2\n2,100,6\n"
LINEAR = {"linear": {"fixed_ns": 10_000_000, "per_token_ns": 100_000}}


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one message of a command that found its input wrong."""
        assert self.code == 2, self
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip().removeprefix("simulate-trace: ")


Simulate = Callable[..., Answer]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: `tiny.csv`, a trace of five requests, and `tiny.yaml`, its experiment at linear costs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.csv").write_text(TRACE)
    write_yaml(tmp_path / "tiny.yaml", trace="tiny.csv", costs=LINEAR, policies=["orca"])
    return tmp_path


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> Simulate:
    """Runs `simulate-trace` with these arguments in `here`, without plots and page unless `drawn`."""
    assert here.is_dir()

    def run(*arguments: object, drawn: bool = False) -> Answer:
        extra = [] if drawn else ["--no-plots", "--no-report"]
        monkeypatch.setattr(sys, "argv", ["simulate-trace", *map(str, arguments), *extra])
        capsys.readouterr()
        gc.freeze()  # a run collects garbage first, which takes a while among all that tests have loaded
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Answer(left.value.code, captured.out, captured.err)

    return run


def write_yaml(path: Path, **keys: Any) -> Path:
    """A YAML of these keys."""
    path.write_text(yaml.safe_dump(keys, sort_keys=False))
    return path


def summary(folder: Path) -> pd.DataFrame:
    """`summary.csv` by label."""
    return pd.read_csv(folder / "summary.csv").set_index("label")


def resolved(folder: Path) -> dict[str, Any]:
    """`experiment.yaml` of a run."""
    keys = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert isinstance(keys, dict)
    return keys


def csv_bytes(folder: Path) -> dict[str, bytes]:
    """All CSVs of a run, by path within it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.csv"))}
