"""Tables that were not measured: their sidecar, the listing, and what a run says."""

from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner

from simulator.cli import simulate_trace
from simulator.cost_table import read_metadata, write_table
from simulator.errors import InputError
from simulator.listing import print_listing
from tests.simulator.tables import metadata, small_rows, write_small_table


@pytest.fixture
def modelled(tmp_path):
    """A table whose sidecar says that it is a model."""
    path = tmp_path / "modelled.csv"
    made = replace(metadata(), source="modelled", torch=None, cuda=None, repeats=0, notes=("model, not measured",))
    write_table(path, small_rows(), made)
    return path


def run(path, folder):
    """What `simulate-trace` prints at these costs."""
    options = ["--costs", path, "--limit", 3, "--num-blocks", 1000, "--out", folder, "--no-plots", "--no-report"]
    result = CliRunner().invoke(simulate_trace, [str(option) for option in options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_sidecar_without_a_source_was_measured(tmp_path):
    """As all were before there was one."""
    path = write_small_table(tmp_path).with_suffix(".yaml")
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert raw.pop("source") == "measured"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert read_metadata(path).source == "measured"
    assert read_metadata(path).origin is None


def test_an_unknown_source_is_refused(modelled):
    """One line with what it may be."""
    path = modelled.with_suffix(".yaml")
    path.write_text(path.read_text(encoding="utf-8").replace("modelled", "guessed"), encoding="utf-8")
    with pytest.raises(InputError, match=r"source: should be 'measured', 'imported' or 'modelled'"):
        read_metadata(path)


def test_a_run_says_that_its_costs_are_a_models(modelled, tmp_path):
    """On the terminal and in experiment.yaml; a measured table is not mentioned."""
    said = "costs of two-layers on Test GPU come from a model of its datasheet"
    assert said in run(modelled, tmp_path / "out")
    assert said in " ".join((tmp_path / "out/experiment.yaml").read_text(encoding="utf-8").split())
    assert "datasheet" not in run(write_small_table(tmp_path), tmp_path / "again")


def test_the_listing_says_what_was_not_measured(capsys):
    """A date stands where it was."""
    print_listing("costs")
    lines = capsys.readouterr().out.splitlines()
    (paper,) = (line for line in lines if line.startswith("paper/gpt3-175b-a100@tp8 "))
    (h200,) = (line for line in lines if line.startswith("h200/llama-13b "))
    assert "no, modelled" in paper
    assert h200.split()[-1].startswith("20")
