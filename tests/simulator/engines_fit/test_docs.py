"""`docs/calibrate-engine.md` does what it says: its example is taken from it and run."""

import re
import shlex
from pathlib import Path

import pytest

from simulator.engines.calibrate import BLOCK, ROOM_S
from simulator.engines.cli import calibrate_engine, main
from simulator.engines.fit_alone import AFTERMATHS
from simulator.engines.fit_in_flight import LEAST_SHARE
from simulator.engines.fit_line import FEWEST, FEWEST_BOUND
from simulator.engines.profile import load_engine
from tests.house.paths import ROOT

PAGE = (ROOT / "docs/calibrate-engine.md").read_text(encoding="utf-8")
[(COMMAND, SHOWN)] = re.findall(r"^```sh\n([^\n]*)\n```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    """Character for character, but for blanks at the ends of lines; and its profile loads."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", shlex.split(COMMAND))
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    assert "\n".join(line.rstrip() for line in out.splitlines()) == SHOWN.rstrip()
    profile = load_engine(str(Path("my-host.yaml").resolve()))
    assert profile is not None
    assert profile.name == "my-host"


def test_options_and_limits_are_described():
    """All options of the command that a page is needed for, and the numbers that decide what is told."""
    known = {option for parameter in calibrate_engine.params for option in parameter.opts}
    named = set(re.findall(r"`(--[a-z][a-z-]+)", PAGE)) | set(re.findall(r" (--[a-z][a-z-]+) ", PAGE))
    assert named - known <= {"--policy", "--list"}
    assert {"--costs", "--engine", "--hold-out", "--max-num-seqs", "--name", "--out", "--requests"} <= named
    for text in (
        f"fewer than {FEWEST},",
        f"fewer than {FEWEST_BOUND} steps",
        f"blocks of {BLOCK},",
        f"more than {1e3 * ROOM_S:g} ms of room",
        f"for {AFTERMATHS[0]}, {AFTERMATHS[1]}, {AFTERMATHS[2]} or {AFTERMATHS[3]} steps",
    ):
        assert text in PAGE, text
    assert LEAST_SHARE == 0.1
    assert "a tenth" in PAGE


def test_every_linked_file_exists():
    """Links are relative to the page."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
