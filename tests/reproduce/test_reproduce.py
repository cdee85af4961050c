"""The command, its figures by hand, and that the committed ones are this version's."""

import csv
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from profiler.imports.datasheet import load_hardware
from profiler.imports.table import DatasheetSource, make_rows, roofline_of
from simulator.cost_table import read_table
from simulator.errors import InputError
from simulator.models import load_model
from simulator.pipeline.bubbles import CAUSES
from simulator.reproduce.__main__ import reproduce
from simulator.reproduce.figures import Outcome
from simulator.reproduce.published import RATIOS, SARATHI, TP_ONLY, TP_PP
from simulator.reproduce.runs import SystemRun, run_system
from simulator.reproduce.variations import Variation, read_variations, systems
from tests.house.paths import ROOT

FOLDER = ROOT / "results/sarathi-pipeline"
SYSTEMS = [pytest.param(TP_ONLY), *(pytest.param(label, marks=pytest.mark.slow) for label in (TP_PP, SARATHI))]


def run_of(label, duration_s, busy_s, request_bubbles_s=(1.0,)):
    """A run that took so long, all bubbles of one cause."""
    bubbles = dict.fromkeys(CAUSES, 0.0) | {CAUSES[0]: duration_s - busy_s}
    finish_s, met = np.array([duration_s]), np.array(request_bubbles_s)
    return SystemRun(label, 1, duration_s, busy_s, bubbles, 0.0, finish_s, met, 3, 1, 0.1, ())


def rows_of(path):
    """The rows of a CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_ratios_are_of_durations_and_of_median_bubbles():
    """40 s against 20 and 25; bubbles of 8 s in the median against 2."""
    runs = {
        TP_PP: run_of(TP_PP, 40.0, 10.0, (1.0, 8.0, 9.0)),
        SARATHI: run_of(SARATHI, 20.0, 16.0, (1.0, 2.0, 9.0)),
        TP_ONLY: run_of(TP_ONLY, 25.0, 25.0),
    }
    outcome = Outcome(Variation("plain", ""), runs, 0.02)
    assert [outcome.ratio(ratio) for ratio in RATIOS] == [2.0, 1.25, 1.6, 4.0]


def test_a_ratio_is_work_times_share():
    """40 s of which 10 are work against 20 with 16: 0.625 times the work, 3.2 times the share."""
    runs = {TP_PP: run_of(TP_PP, 40.0, 10.0), SARATHI: run_of(SARATHI, 20.0, 16.0)}
    work, share = Outcome(Variation("plain", ""), runs, 0.02).factors(RATIOS[0])
    assert (work, share) == (0.625, 3.2)


@pytest.fixture
def small(tmp_path):
    """The experiment with 40 requests and two variations."""
    folder = tmp_path / "small"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.png", "README.md", "*.csv", "tables"))
    cut = {"changes": {"limit": 40}}
    variations = [
        {"name": "few", "about": "40 requests", **cut},
        {"name": "three", "about": "3 in a micro-batch", **cut},
    ]
    variations[1]["set"] = ["tp-pp.max_batch_size=3", "sarathi.max_num_seqs=3"]
    (folder / "variations.yaml").write_text(yaml.safe_dump({"variations": variations}), encoding="utf-8")
    return folder


def invoke(*arguments):
    """The command's result."""
    return CliRunner().invoke(reproduce, [str(argument) for argument in (*arguments, "--jobs", 1)])


def test_the_command_writes_page_tables_and_plots(small):
    """Requests first, as they are not there; each ratio on the page is that of the table."""
    result = invoke(small)
    assert result.exit_code == 0, result.output
    rows = rows_of(small / "ratios.csv")
    assert [row["variation"] for row in rows] == ["published", "few", "three"]
    page = (small / "README.md").read_text(encoding="utf-8")
    for row in rows[1:]:
        ratios = " | ".join(f"{float(row[ratio.name]):.2f}x" for ratio in RATIOS)
        assert f"| {row['variation']} | {1e3 * float(row['micro_batch_s']):.1f} ms | {ratios} |" in page
    for name in re.findall(r"\]\(([\w.-]+\.png)\)", page):
        assert (small / name).stat().st_size > 5000
    assert len((small / "requests.csv").read_text(encoding="utf-8").splitlines()) == 10_001


def test_stages_times_are_whole(small):
    """Busy, bubbles by cause, and what is before the first and after the last work: together the duration."""
    assert invoke(small, "--only", "few", "--out", small / "out").exit_code == 0
    for row in rows_of(small / "out/times.csv"):
        parts = [row[name] for name in ("busy_s", "outside_s", *(f"{cause}_s" for cause in CAUSES))]
        assert sum(map(float, parts)) == pytest.approx(float(row["duration_s"]), rel=1e-4)


def test_a_part_of_the_variations_does_not_replace_the_whole(small):
    """It asks for another folder, and for a name that there is."""
    for arguments, message in (
        ((small, "--only", "few"), "of all variations"),
        ((small, "--only", "fwe", "--out", small / "out"), 'did you mean "few"?'),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            CliRunner().invoke(reproduce, [str(argument) for argument in arguments], standalone_mode=False,
                               catch_exceptions=False)  # fmt: skip


def test_a_page_of_somebody_else_is_not_overwritten(small, tmp_path):
    """A README without our tables beside it."""
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    result = invoke(small, "--out", tmp_path)
    assert isinstance(result.exception, InputError)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("label", SYSTEMS)
def test_the_committed_times_are_those_of_this_version(label):
    """To their digits; a change asks for `make sarathi-pipeline`."""
    [plain, *_] = read_variations(FOLDER / "variations.yaml")
    [system] = [system for system in systems(FOLDER, plain) if system.label == label]
    run = run_system(system)
    [row] = [row for row in rows_of(FOLDER / "times.csv") if (row["variation"], row["system"]) == (plain.name, label)]
    found = {"duration_s": run.duration_s, "busy_s": run.busy_s, "request_bubble_p50_s": run.median_bubble_s}
    found["micro_batches"] = run.micro_batches
    for name, value in found.items():
        assert math.isclose(float(row[name]), value, rel_tol=1e-5), name


def test_every_variation_has_its_committed_rows():
    """In order, all three systems."""
    names = [variation.name for variation in read_variations(FOLDER / "variations.yaml")]
    assert [row["variation"] for row in rows_of(FOLDER / "ratios.csv")] == ["published", *names]
    times = [(row["variation"], row["system"]) for row in rows_of(FOLDER / "times.csv")]
    assert times == [(name, label) for name in names for label in (TP_PP, SARATHI, TP_ONLY)]


@pytest.mark.parametrize("share", [0.55, 0.44])
def test_the_what_if_tables_are_what_their_commands_make(share):
    """Row for row."""
    name = f"gpt3-175b-a100-flops{100 * share:.0f}@tp8.csv"
    held = read_table(FOLDER / "tables" / name)
    options = f"--gpu a100-80 --model gpt3-175b --tp 8 --flops-share {share:g} --out {name}"
    assert held.metadata.command.startswith(f"import-costs datasheet {options}")
    hardware = load_hardware("a100-80").lowered(share)
    made = make_rows(DatasheetSource(roofline_of(load_model("gpt3-175b"), 8, hardware)))
    assert held.frame()["time_us"].to_numpy() == pytest.approx(made["time_us"].to_numpy(), abs=1e-4)


def test_every_ratio_that_the_reading_names_is_in_the_tables():
    """Numbers such as 2.57x; and every file that it links to is there."""
    reading, page = ((FOLDER / name).read_text(encoding="utf-8") for name in ("reading.md", "README.md"))
    named = re.findall(r"\b\d+\.\d\dx", reading)
    assert len(named) > 8
    assert [ratio for ratio in named if ratio not in page] == []
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", reading + page):
        assert Path(FOLDER, target).exists(), target
