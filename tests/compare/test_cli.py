"""`compare-runs` as a user runs it: what it prints, what it writes, and what it leaves alone."""

import gzip
from pathlib import Path

import pandas as pd
import pytest

from simulator.step_log_rows import COLUMNS
from tests.compare import files
from tests.compare.conftest import Compare

STEPS = [
    ",".join(COLUMNS),
    "0,0,1,1.002,2,1,0,0,0,0,0:0:8,",
    "1,3,4,4.001,5,0,1,1,9,9,1:4:20,",
    "2,6,7,7.004,8,0,2,2,20,11,,",
]
EXPERIMENT = "costs: {linear: {fixed_ns: 1000000, per_token_ns: 50000}}\nengine: none\n"


@pytest.fixture
def runs(here: Path) -> Path:
    """`run` with a step log and `out` with iterations and an experiment."""
    files.measured_folder(here / "run")
    (here / "run/steps.csv.gz").write_bytes(gzip.compress("\n".join([*STEPS, ""]).encode()))
    files.simulated_folder(here / "out")
    iterations = "iteration,num_decodes,num_prefills,prefill_tokens\n0,0,1,8\n1,2,0,0\n"
    (here / "out/vllm/iterations.csv").write_text(iterations, encoding="utf-8")
    (here / "out/experiment.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return here


def test_the_errors_are_printed(compare_runs: Compare, runs: Path) -> None:
    """The same run on both sides: no error anywhere, and nothing is written."""
    before = sorted(runs.rglob("*"))
    answer = compare_runs("run", "out")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[5].split() == ["TTFT", "mean", "317", "ms", "317", "ms", "+0.0", "%"]
    assert "reference: run (measured folder)\nother: out/vllm (simulate-trace)\n" in answer.out
    assert sorted(runs.rglob("*")) == before


def test_every_file_is_written(compare_runs: Compare, runs: Path) -> None:
    """Tables, page and plots; the page names only plots that are there."""
    answer = compare_runs("run", "out", "--out", "compared")
    assert (answer.code, answer.err) == (0, "")
    assert {path.name for path in (runs / "compared").iterdir()} == {
        *("errors.csv", "compare.md", "request_errors.csv", "steps.csv", "steps_worst.csv", "composition.csv"),
        *(f"{stem}.{kind}" for stem in ("quantiles", "requests", "steps") for kind in ("png", "svg")),
    }
    errors = pd.read_csv(runs / "compared/errors.csv", index_col="metric")
    assert list(errors.columns) == ["reference", "other", "error_percent", "definition", "notes"]
    assert errors.loc["e2e_p50_s", "reference"] == 0.75
    assert errors.loc["itl_p90_s", "error_percent"] == pytest.approx(0, abs=0.2)
    page = (runs / "compared/compare.md").read_text(encoding="utf-8")
    assert page.startswith("# out/vllm against run\n")
    for stem in ("quantiles", "requests", "steps"):
        assert f"]({stem}.png)" in page


def test_steps_are_priced_by_the_experiment(compare_runs: Compare, runs: Path) -> None:
    """1 ms and 50 us a token: 1.4, 2.05 and 1.1 ms against 2, 1 and 4 ms."""
    assert compare_runs("run", "out", "--out", "compared", "--no-plots", "--worst", 1).code == 0
    steps = pd.read_csv(runs / "compared/steps.csv")
    assert steps["priced_s"].tolist() == pytest.approx([0.0014, 0.00205, 0.0011])
    assert steps["measured_s"].tolist() == pytest.approx([0.002, 0.001, 0.004])
    assert steps["line"].tolist() == [2, 3, 4]
    worst = pd.read_csv(runs / "compared/steps_worst.csv")
    assert worst["step"].tolist() == [2]
    assert not list((runs / "compared").glob("*.png"))


@pytest.mark.usefixtures("runs")
def test_a_table_can_be_named(compare_runs: Compare) -> None:
    """Instead of that of the experiment; a log alone has no figures, which is said."""
    answer = compare_runs("run/steps.csv.gz", "out", "--costs", "h200/llama-3.1-8b")
    assert answer.code == 0
    assert "steps priced by costs h200/llama-3.1-8b" in answer.out
    assert "TTFT, TPOT, ITL, E2E not comparable: steps.csv.gz: a step log alone has no latencies" in answer.out
    assert "Duration" not in answer.out


@pytest.mark.usefixtures("runs")
def test_an_engine_without_prices_and_an_unknown_one(compare_runs: Compare) -> None:
    """Exit status 2 with what is missing or known."""
    answer = compare_runs("run", "run", "--engine", "none")
    assert (answer.code, "--engine: needs --costs" in answer.err) == (2, True)
    answer = compare_runs("run", "out", "--engine", "non")
    assert (answer.code, 'unknown engine profile "non"; did you mean "none"?' in answer.err) == (2, True)


def test_two_workloads_are_warned_of(compare_runs: Compare, runs: Path) -> None:
    """On standard error and on the page; the comparison is made all the same."""
    path = files.write_json(runs / "bench.json", files.vllm_document(detail=False, total_output_tokens=9))
    answer = compare_runs("run", path, "--out", "compared", "--no-plots", "--quiet")
    warning = "not the same workload? 8 against 9 output tokens, 2.75 against 3 s of duration"
    assert (answer.code, answer.out, answer.err) == (0, "", f"warning: {warning}\n")
    assert f"**Warning: {warning}**" in (runs / "compared/compare.md").read_text(encoding="utf-8")


def test_nothing_in_common(compare_runs: Compare, runs: Path) -> None:
    """A step log and a result without steps."""
    files.write_json(runs / "bench.json", files.vllm_document())
    answer = compare_runs("run/steps.csv.gz", "bench.json")
    assert answer.code == 2
    assert "have nothing in common to compare" in answer.err


def test_what_is_there_is_not_overwritten(compare_runs: Compare, runs: Path) -> None:
    """Without --force nothing, with it only an earlier comparison, and never a folder of anything else."""
    assert compare_runs("run", "out", "--out", "compared").code == 0
    (runs / "compared/notes.txt").write_text("mine", encoding="utf-8")
    answer = compare_runs("run", "out", "--out", "compared")
    assert (answer.code, 'folder "compared" is not empty' in answer.err) == (2, True)
    assert compare_runs("run", "out", "--out", "compared", "--force", "--no-plots").code == 0
    assert not (runs / "compared/steps.png").exists()
    assert (runs / "compared/notes.txt").read_text(encoding="utf-8") == "mine"
    for folder in ("run", "out"):
        answer = compare_runs("run", "out", "--out", folder, "--force")
        assert (answer.code, "holds no earlier comparison" in answer.err) == (2, True)
    answer = compare_runs("run", "out", "--out", "run/run.json")
    assert (answer.code, "is a file" in answer.err) == (2, True)


def test_the_same_comparison_gives_the_same_bytes(compare_runs: Compare, runs: Path) -> None:
    """Tables and plots."""
    for folder in ("one", "two"):
        assert compare_runs("run", "out", "--out", folder).code == 0
    for path in (runs / "one").iterdir():
        if path.name != "compare.md":  # it has the command line
            assert path.read_bytes() == (runs / "two" / path.name).read_bytes(), path.name


def test_a_name_cannot_break_the_page(compare_runs: Compare, runs: Path) -> None:
    """Marks of Markdown and HTML in a folder's name are text."""
    (runs / "run").rename(runs / "a|b<i>_c_")
    assert compare_runs("a|b<i>_c_", "out", "--out", "compared", "--no-plots").code == 0
    page = (runs / "compared/compare.md").read_text(encoding="utf-8")
    assert page.splitlines()[0] == r"# out/vllm against a\|b&lt;i>\_c\_"


def test_prices_are_only_looked_for_where_steps_are(compare_runs: Compare, runs: Path) -> None:
    """A table that is gone does not matter without a step log, and naming one then is a mistake."""
    (runs / "out/experiment.yaml").write_text("costs: gone.csv\n", encoding="utf-8")
    answer = compare_runs("run", "out")
    assert (answer.code, 'no cost table "gone.csv"' in answer.err) == (2, True)
    (runs / "run/steps.csv.gz").unlink()
    assert compare_runs("run", "out").code == 0
    answer = compare_runs("run", "out", "--costs", "h200/llama-3.1-8b")
    assert (answer.code, "--costs: run has no step log" in answer.err) == (2, True)
