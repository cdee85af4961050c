"""What all commands do alike: help and version."""

import subprocess
import sys
import tomllib

import pytest

from simulator import __version__
from tests.house.paths import ROOT

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
HEAVY = {"torch", "pandas", "pydantic", "numpy", "duckdb", "matplotlib"}


def ran(script, option):
    """What the command prints, and which heavy modules it has loaded by then."""
    module, _, function = SCRIPTS[script].partition(":")
    program = (
        f"import sys; sys.argv = [{script!r}, {option!r}]\n"
        f"from {module} import {function} as command\n"
        "try: command()\n"
        f"except SystemExit as end: print(end.code, sorted({HEAVY} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return shown.rstrip().rpartition("\n")[::2]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_a_short_manual_and_loads_nothing_heavy(script):
    """It is there in an instant, and has examples."""
    shown, end = ran(script, "--help")
    assert "Examples:" in shown
    assert end == "0 []"


@pytest.mark.parametrize("script", SCRIPTS)
def test_version_names_the_command_and_the_release(script):
    """In one form."""
    assert ran(script, "--version") == (f"{script}, version {__version__}", "0 []")
