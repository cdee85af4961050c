"""The plots of whole, poor and shipped tables, and `--report`."""

import subprocess
import sys
import warnings
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from profiler.cli import main
from profiler.finish import folder_of
from profiler.grid import Point
from profiler.plots import FIGURES, write_plots
from profiler.sweep import Measured, row_of
from profiler.timing import Timing
from simulator.cost_table import read_table, write_table
from simulator.named_tables import find_table
from tests.profiler.staircases import linear_rows
from tests.profiler.test_sweep import METADATA


@pytest.fixture(autouse=True)
def strict():
    """A warning of numpy or matplotlib is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _table(folder, rows):
    write_table(folder / "t.csv", rows, METADATA)
    return read_table(folder / "t.csv")


def test_a_shipped_table_is_drawn_as_png_and_svg(tmp_path):
    """Every figure twice; the PNGs are pictures, the SVGs parse; the same table gives the same bytes."""
    table = find_table("h200/llama-3.1-8b")
    written = write_plots(table, tmp_path / "a")
    assert [path.name for path in written] == [f"{stem}.{kind}" for stem in FIGURES for kind in ("png", "svg")]
    for png, svg in zip(written[::2], written[1::2], strict=True):
        assert png.read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    again = write_plots(table, tmp_path / "b")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]


@pytest.mark.parametrize(
    "rows",
    [
        linear_rows({1: 10.0}, ["mlp"]),
        linear_rows({64: 10.0, 65: 12.0, 1000: 40.0}, ["mlp", "o_proj"]),
        Measured(
            {p: row_of(p, Timing(5.0, 4.0, 6.0, 7), 0.0) for p in [Point("attention", decodes=1, decode_context=16)]}
        ).frame(),
    ],
    ids=["one row", "two operators", "one decode"],
)
def test_poor_tables_are_drawn_too(tmp_path, rows):
    """Unfinished tables have gaps."""
    assert len(write_plots(_table(tmp_path, rows), tmp_path / "plots")) == 2 * len(FIGURES)


def test_report_says_and_draws_without_torch(tmp_path):
    """In a process of its own: the answer on stdout, plots beside the table, torch unloaded."""
    _table(tmp_path, linear_rows({1: 90.0, 256: 100.0, 257: 114.0, 512: 120.0}, spread=0.001))
    program = (
        "import sys; from profiler.cli import main\n"
        f"try: main(['--report', {str(tmp_path / 't.csv')!r}])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "257 tokens cost 14 ± 1 % more than 256" in shown.stdout
    assert shown.stdout.rstrip().endswith("0 False")
    assert (tmp_path / "t-plots" / "roofline.svg").is_file()


def test_report_of_a_named_table_draws_where_it_is_told(tmp_path, monkeypatch):
    """In the current folder by default, since a table that ships is not the user's to write beside."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["--report", "h200/llama-13b", "--quiet"]).exit_code == 0
    assert (tmp_path / "llama-13b-plots" / "tokens.png").is_file()
    assert CliRunner().invoke(main, ["--report", "h200/llama-13b", "--no-plots"]).exit_code == 0


def test_report_measures_nothing():
    """Options of a measurement beside it are a mistake, and so is a table that is not there."""
    for wrong in (["--model", "tiny"], ["--out", "x.csv"], ["--resume"]):
        result = CliRunner().invoke(main, ["--report", "h200/llama-13b", *wrong])
        assert result.exit_code == 2
        assert "reads a finished table" in result.output
    result = CliRunner().invoke(main, ["--report", "h200/llama-13"])
    assert result.exit_code == 2
    assert 'did you mean "h200/llama-13b' in result.output


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    """A file of that name is in the way."""
    (tmp_path / "plots").touch()
    result = CliRunner().invoke(main, ["--report", "h200/llama-13b", "--plots", str(tmp_path / "plots"), "--quiet"])
    assert result.exit_code == 2
    assert "cannot write plots into" in result.output


def test_the_plots_lie_beside_the_table(tmp_path):
    """A dot or an @ in its name is no suffix."""
    assert folder_of(tmp_path / "llama-3.1-8b@fa2.csv") == tmp_path / "llama-3.1-8b@fa2-plots"
