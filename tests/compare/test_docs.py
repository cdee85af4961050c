"""`docs/compare-runs.md` does what it says: its commands are taken from it and run."""

import csv
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from simulator.cli import simulate_trace
from simulator.compare.cli import compare_runs as command
from simulator.compare.figures import DEFINITIONS
from simulator.compare.output import OURS
from simulator.compare.readers import readers
from tests.compare.conftest import Compare
from tests.house.paths import ROOT

PAGE = (ROOT / "docs/compare-runs.md").read_text(encoding="utf-8")
[(COMMANDS, SHOWN)] = re.findall(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_is_shown(compare_runs: Compare, here: Path) -> None:
    """Character for character, but for blanks at the ends of lines."""
    *simulations, comparison = COMMANDS.splitlines()
    for line in simulations:
        options = [*shlex.split(line)[1:], "--no-plots", "--no-report", "--quiet"]
        assert CliRunner().invoke(simulate_trace, options, catch_exceptions=False).exit_code == 0
    answer = compare_runs(*shlex.split(comparison)[1:])
    assert (answer.code, answer.err) == (0, "")
    assert "\n".join(line.rstrip() for line in answer.out.splitlines()) == SHOWN.rstrip()
    assert sorted(path.name for path in here.iterdir()) == ["large", "small"]


def test_the_parts_shown_are_those_of_the_validation() -> None:
    """Of the run that is named."""
    [shown] = re.findall(r"^```text\n(Error of mean ITL .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [name] = re.findall(r"Of the run `(.*?)` in", PAGE)
    with (ROOT / "results/validation/parts.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == name]
    lines = [" ".join(line.split()) for line in shown.splitlines()[1:]]
    assert lines == [
        f"{row['part']} {1e3 * float(row['seconds']):+.2f} ms {float(row['percent_of_measured']):+.1f} %"
        for row in rows
    ]


def test_files_definitions_and_options_are_described() -> None:
    """All of them."""
    for name in OURS:
        stem, _, ending = name.rpartition(".")
        assert f"`{name}`" in PAGE or (ending == "svg" and f"`{stem}.png`, `.svg`" in PAGE), name
    for name in ("duration", "ttft", "tpot", "itl", "e2e"):
        assert f"| {name} | {DEFINITIONS[name]} |" in PAGE
    known = {option for parameter in command.params for option in parameter.opts}
    assert {"--label", "--index", "--costs", "--out", "--force", "--worst"} <= known
    for option in re.findall(r"`(--[a-z]+)", PAGE.replace("`--output-details`", "").replace("`--save-detailed`", "")):
        assert option in known | {"--append"}, option


def test_every_format_is_in_the_help() -> None:
    """By the name that its reader has."""
    text = " ".join(str(command.epilog).split())
    for reader in readers():
        first = reader.NAME.split()[0]
        assert first in text or reader.NAME in ("measured folder", "step log"), reader.NAME


def test_every_linked_file_exists() -> None:
    """Links are relative to the page."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
