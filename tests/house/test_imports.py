"""What `simulate-trace` loads: never torch, and no plotting library when nothing is plotted."""

import json
import subprocess
import sys

import pytest

from tests.house.paths import outside

LINEAR = "costs: {linear: {fixed_ns: 8000000, per_token_ns: 50000}}\n"
LOADED = """
import json, sys
sys.argv = ["simulate-trace", *sys.argv[1:]]
from simulator.cli import main
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
print(json.dumps([name for name in sys.modules if "." not in name]))
"""


@pytest.fixture
def loaded(tmp_path):
    """Top-level modules after a run of `simulate-trace` with these options."""
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(LINEAR, encoding="utf-8")

    def run(*options):
        command = [sys.executable, "-c", LOADED, *options]
        done = subprocess.run(command, cwd=tmp_path, env=outside(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return set(json.loads(done.stdout.splitlines()[-1]))

    return run


def test_a_whole_run_leaves_torch_unloaded(loaded):
    """Simulation, plots and page."""
    modules = loaded("experiment.yaml", "--limit", "5", "--out", "out", "--quiet")
    assert "matplotlib" in modules
    assert not {"torch", "flash_attn", "profiler"} & modules


def test_without_plots_and_page_no_plotting_library_is_loaded(loaded):
    """It would cost a second."""
    options = ["--limit", "5", "--out", "out", "--no-plots", "--no-report", "--quiet"]
    assert "matplotlib" not in loaded("experiment.yaml", *options)
