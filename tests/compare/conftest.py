"""Running `compare-runs` in a folder of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.compare.cli import main


class Answer(NamedTuple):
    """Exit status, standard output, standard error."""

    code: int
    out: str
    err: str


Compare = Callable[..., Answer]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def compare_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """The command with these arguments."""

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr("sys.argv", ["compare-runs", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Answer(ended.value.code, *capsys.readouterr())

    return run
