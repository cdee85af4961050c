"""Input that cannot be: one clear message on standard error, exit status 2, nothing written."""

import gzip
import json
from pathlib import Path

import pytest

from tests.compare import files
from tests.compare.conftest import Compare


def bench(**changes: object) -> str:
    """A detailed result of vllm bench serve with other values."""
    return json.dumps(files.vllm_document() | changes)


def aiperf(**changes: object) -> str:
    """A request's line of AIPerf."""
    return json.dumps(files.aiperf_lines()[1] | changes)


def guidellm(**changes: object) -> str:
    """A report of GuideLLM."""
    return json.dumps(files.guidellm_document() | changes)


BROKEN = {
    "empty file": ("", "the file is neither JSON nor a step log"),
    "blank file": (" \n", "the file is neither JSON nor a step log"),
    "cut off": (bench()[:-40], "line 1: not JSON at column"),
    "second line cut off": (bench() + "\n" + bench()[:99], "line 2: not JSON at column"),
    "not an object": ("[1, 2]", "line 1: should be a JSON object, not list"),
    "unknown keys": ('{"a": 1, "b": 2}', "the JSON has the keys a, b"),
    "deeply nested": ('{"a":' * 50_000, "not readable as JSON"),
    "NaN in an array": (bench(ttfts=[0.5, float("nan"), 0.2]), "line 1, ttfts[1]: should be a finite number, not nan"),
    "text in an array": (bench(output_lens=[1, "x", 2]), "output_lens[1]: should be a finite number, not 'x'"),
    "array of null": (bench(itls=None), "line 1: arrays of different lengths"),
    "null in itls": (bench(itls=[None, [], []]), "itls[0]: should be an array of numbers, not None"),
    "short array": (bench(ttfts=[0.5]), "arrays of different lengths: {'input_lens': 3"),
    "short start times": (bench(start_times=[1.0]), "start_times: 1 entries for 3 requests"),
    "empty arrays": (bench(input_lens=[], output_lens=[], ttfts=[], itls=[]), "empty arrays: no requests"),
    "all failed": (bench(ttfts=[0, 0, 0]), "none of 3 requests succeeded"),
    "none completed": (bench(completed=0), "completed: no request completed"),
    "text for a number": (bench(duration="3 s"), "line 1, duration: should be a number, not '3 s'"),
    "huge integer": (bench(completed=10**400), "line 1, completed: the number is too large"),
    "huge in an array": (bench(ttfts=[10**400, 1, 1]), "ttfts[0]: should be a finite number"),
    "aiperf: no metrics": (aiperf(metrics=None), "line 1, metrics: should be an object, not None"),
    "aiperf: unit": (
        aiperf(metrics={"request_latency": {"value": 1, "unit": "fortnight"}}),
        "request_latency: unknown unit 'fortnight'; known: ns, us, ms, s",
    ),
    "aiperf: all failed": (aiperf(error={"code": 500}), "no request succeeded; 1 failed, 0 of the warm-up"),
    "guidellm: none": (guidellm(benchmarks=[]), "benchmarks: no benchmarks"),
    "guidellm: no object": (guidellm(benchmarks=[7]), "benchmarks[0]: should be an object, not 7"),
    "guidellm: no metrics": (guidellm(benchmarks=[{}]), "benchmarks[0].metrics: should be an object, not None"),
    "guidellm: none successful": (
        guidellm(benchmarks=[{"metrics": {"request_totals": {"successful": 0}}}]),
        "benchmarks[0]: no successful request",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_message(compare_runs: Compare, here: Path, name: str) -> None:
    """It names the file, and line or key."""
    text, message = BROKEN[name]
    (here / "broken.json").write_text(text, encoding="utf-8")
    files.measured_folder(here / "run")
    answer = compare_runs("run", "broken.json", "--out", "out")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("compare-runs: broken.json")
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert not (here / "out").exists()


def test_what_is_not_there(compare_runs: Compare, here: Path) -> None:
    """A path, a folder without results, a label, an index."""
    files.measured_folder(here / "run")
    files.simulated_folder(here / "out", ("orca", "vllm"))
    files.write_json(here / "bench.json", files.vllm_document())
    (here / "empty").mkdir()
    for arguments, message in (
        (("run", "bench.jso"), '"bench.jso" not found; did you mean "bench.json"?'),
        (("run", "empty"), "empty: no results that are known here; the folder holds nothing"),
        (("run", "out"), "out: several policies; choose one with --label: orca, vllm"),
        (("run", "out/vlm"), 'no "vlm"; did you mean "vllm"?'),
        (("run", "out", "--label", "vlm"), 'no "vlm"; did you mean "vllm"?'),
        (("run", "bench.json#2"), "there is no run 2; there are 1 to 1"),
        (("run", "bench.json", "--index", 4), "there is no run 4; there are 1 to 1"),
    ):
        answer = compare_runs(*arguments)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.csv", "", "summary.csv: cannot be read as CSV"),
        ("summary.csv", "a,b\n1,2\n", 'summary.csv: no rows with a "label"'),
        ("summary.csv", "label\n", 'summary.csv: no rows with a "label"'),
        ("vllm/requests.csv", "arrival_s\n1\n", 'requests.csv, line 1: no column "prompt_tokens"'),
        ("vllm/requests.csv", None, "requests.csv: cannot be read as CSV: No such file"),
        ("vllm/itl_quantiles.csv", "probability,itl_s\n0,2\n1,1\n", "itl_quantiles.csv, itl_s: should ascend"),
        ("vllm/itl_quantiles.csv", "probability,itl_s\n0,x\n", "itl_quantiles.csv, line 2, itl_s: 'x' is not a finite"),
        ("experiment.yaml", "- a\n", "experiment.yaml: should be a mapping"),
    ],
)
def test_a_damaged_output_folder(compare_runs: Compare, here: Path, name: str, text: str | None, message: str) -> None:
    """Each file by its name; None is a file that is missing."""
    files.simulated_folder(here / "out")
    (here / "out" / name).unlink(missing_ok=True)
    if text is not None:
        (here / "out" / name).write_text(text, encoding="utf-8")
    answer = compare_runs("out", "out")
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "{", "run.json, line 1: not JSON"),
        ("requests.csv", "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n", "requests.csv: no rows"),
        (
            "requests.csv",
            "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n0,1,2,inf,4\n",
            "requests.csv, line 2, first_token_s: 'inf' is not a finite number",
        ),
        (
            "requests.csv",
            "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n0,1,2,,\n",
            "requests.csv: no request has a first token and a finish",
        ),
    ],
)
def test_a_damaged_measured_folder(compare_runs: Compare, here: Path, name: str, text: str, message: str) -> None:
    """Each file by its name."""
    files.measured_folder(here / "run")
    (here / "run" / name).write_text(text, encoding="utf-8")
    answer = compare_runs("run", "run")
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[0.5, NaN]", "[1]", "[2]"], "line 1, times[1]: should be a finite number, not nan"),
        (["[0.5]", "[1"], "line 2: not JSON"),
        (["[0.5]"], "1 lines, but requests.csv has 3 requests"),
    ],
)
def test_damaged_token_times(compare_runs: Compare, here: Path, lines: list[str], message: str) -> None:
    """By file and line."""
    files.measured_folder(here / "run")
    (here / "run/token_times.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    answer = compare_runs("run", "run")
    assert answer.code == 2
    assert "token_times.jsonl.gz" in answer.err
    assert message in answer.err


def test_binary_files(compare_runs: Compare, here: Path) -> None:
    """Noise, and gzip that is cut off."""
    files.measured_folder(here / "run")
    for content in (b"\x89PNG\r\n\xff\xfe", b"{\xff\xfe}", gzip.compress(b'{"a": 1}')[:-4], b"\x1f\x8bnoise"):
        (here / "noise").write_bytes(content)
        answer = compare_runs("run", "noise")
        assert (answer.code, "Traceback" in answer.err) == (2, False)
        assert answer.err.startswith("compare-runs: noise: ")
