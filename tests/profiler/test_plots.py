"""The plots of whole, poor and shipped tables, and `--report`."""

import subprocess
import sys
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from profiler.answer import answer
from profiler.cli import main
from profiler.cliffs import LAYER, find_cliffs
from profiler.finish import folder_of
from profiler.grid import Point
from profiler.plot_cliffs import PANELS, draw_cliffs
from profiler.plot_labels import largest
from profiler.plot_roofline import draw_roofline
from profiler.plot_tokens import draw_tokens
from profiler.plots import FIGURES, write_plots
from profiler.sweep import Measured, row_of
from profiler.timing import Timing
from simulator.cost_table import read_table, write_table
from simulator.named_tables import find_table
from simulator.report.style import styled
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


def _texts(axes):
    return [text for text in axes.texts if text.get_text()]


@pytest.mark.parametrize("name", ["h200/llama-13b", "h200/llama-3.1-8b", "paper/gpt3-175b-a100@tp8"])
def test_the_largest_cliffs_are_the_labelled_ones(name):
    """Up or down, in every panel: the three largest at least, none but the seven largest, each within its axes."""
    table = find_table(name)
    cliffs = find_cliffs(table.frame(), table.metadata.cliffs)
    with styled():
        figure = draw_cliffs(table, "")
    for operator, axes in zip(PANELS, figure.axes, strict=True):
        tokens = [f"{cliff.tokens}" for cliff in largest([c for c in cliffs if c.operator == operator], 7)]
        labels = [text.get_text() for text in _texts(axes)]
        assert set(tokens[:3]) <= set(labels) <= set(tokens), operator
        low, high = axes.get_xlim()
        assert all(low < text.xy[0] < high for text in _texts(axes)), operator


def test_the_step_of_few_sequences_is_on_the_axis():
    """From 16 to 17 sequences the LM head of llama-13b gets 16 % cheaper: its largest cliff."""
    with styled():
        head = draw_cliffs(find_table("h200/llama-13b"), "").axes[-1]
    assert head.get_xlim()[0] < 16
    assert "16" in [text.get_text() for text in _texts(head)]


def test_sizes_over_the_times_are_of_the_largest_cliffs():
    """The eight largest of the layer, falls with a minus sign."""
    table = find_table("h200/llama-13b")
    layer = [c for c in find_cliffs(table.frame(), table.metadata.cliffs) if c.operator == LAYER and c.tokens > 32]
    with styled():
        labels = [text.get_text() for text in _texts(draw_tokens(table, "").axes[0])]
    assert [label.split()[0] for label in labels] == [f"{cliff.tokens}" for cliff in largest(layer, 8)]
    assert (
        sum("\N{MINUS SIGN}" in label for label in labels) == sum(cliff.growth < 0 for cliff in largest(layer, 8)) > 0
    )


@pytest.mark.parametrize(
    ("source", "ceiling", "interval", "filled"),
    [
        ("measured", "measured: ", "± is the spread of separate measurements", "a cliff"),
        ("imported", "imported: ", "± is the spread of separate measurements of others", "a cliff"),
        ("modelled", "modelled: ", "modelled, not measured", "2 % or more"),
    ],
)
def test_words_are_those_of_the_tables_origin(tmp_path, source, ceiling, interval, filled):
    """Ceilings, intervals, and what filled and hollow points are; nothing modelled is called measured."""
    rows = linear_rows({1: 90.0, 256: 100.0, 257: 114.0, 512: 120.0}, spread=0.001)
    write_table(tmp_path / "t.csv", rows, replace(METADATA, source=source))
    table = read_table(tmp_path / "t.csv")
    with styled():
        cliffs, roofline = draw_cliffs(table, ""), draw_roofline(table, "")
    assert any(text.get_text().startswith(ceiling) for text in _texts(roofline.axes[0]))
    assert cliffs.texts[0].get_text() == f"Cliffs: what one token more costs ({interval})"
    key = [text.get_text() for text in cliffs.legends[0].get_texts()]
    assert (key[0], len(key)) == (filled, 2)
    told = answer(table.frame(), table.metadata, 40)[0]
    assert interval in told
    assert ("stand out of the noise" in told) == (source != "modelled")


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
