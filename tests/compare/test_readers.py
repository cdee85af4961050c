"""One run in every format gives the figures worked out by hand; what a file does not have is not made up."""

import math

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from simulator.cli import simulate_trace
from simulator.compare.figures import figures_of, not_comparable
from simulator.compare.readers import read_run
from simulator.compare.run import LATENCIES, RATES, STATISTICS
from tests.compare import files


def written(tmp_path, kind):
    """The path of the run in that format."""
    path = tmp_path / kind
    makers = {
        "measured": lambda: files.measured_folder(path),
        "simulated": lambda: files.simulated_folder(path),
        "vllm": lambda: files.write_json(path, files.vllm_document()),
        "sglang": lambda: files.write_json(path, files.sglang_document()),
        "aiperf": lambda: files.write_json(path, *files.aiperf_lines()),
        "aiperf-json": lambda: files.write_json(path, files.aiperf_document()),
        "guidellm": lambda: files.write_json(path, files.guidellm_document()),
    }
    return makers[kind]()


FORMATS = {
    "measured": "measured folder",
    "simulated": "simulate-trace",
    "vllm": "vllm bench serve",
    "sglang": "SGLang bench_serving",
    "aiperf": "AIPerf",
    "aiperf-json": "AIPerf",
    "guidellm": "GuideLLM",
}
LACKING = {"sglang": {"duration_s"}, "guidellm": {"itl_p50_s", "itl_p90_s"}}
"""SGLang's own duration is from before the first request; GuideLLM keeps no gaps."""


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_figures(tmp_path, kind):
    """By hand, whatever the file's name, units, order and rows of failed requests."""
    run = read_run(str(written(tmp_path, kind)))
    assert run.format == FORMATS[kind]
    assert (run.num_requests, run.output_tokens) == (3, 8)
    lacking = LACKING.get(kind, set())
    for name, expected in files.FIGURES.items():
        if name not in lacking and not (lacking & {"duration_s"} and name.endswith("_per_s")):
            assert run.figure(name) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "aiperf-json"])
def test_requests_are_in_order_of_arrival(tmp_path, kind):
    """Also where the file has them in another order: they are matched by their place."""
    requests = read_run(str(written(tmp_path, kind))).requests
    assert requests is not None
    assert requests.prompt_tokens.tolist() == [100, 50, 30]
    assert requests.output_tokens.tolist() == [3, 1, 4]
    assert np.isnan(requests.tpot_s).tolist() == [False, True, False]


def test_sglang_has_its_own_duration(tmp_path):
    """Without sending times there is no other."""
    run = read_run(str(written(tmp_path, "sglang")))
    assert run.figure("duration_s") == 3.0
    assert run.figure("output_tokens_per_s") == pytest.approx(8 / 3)


@pytest.mark.parametrize("document", [files.vllm_document(failed=2), files.sglang_document(failed=2)])
def test_failed_requests_do_not_count(tmp_path, document):
    """They stand in the arrays with a TTFT of 0."""
    run = read_run(str(files.write_json(tmp_path / "bench.json", document)))
    assert run.num_requests == 3
    assert run.figure("ttft_mean_s") == pytest.approx(0.95 / 3)
    assert run.notes == ("2 requests failed and are left out",)


@pytest.mark.parametrize("document", [files.vllm_document(detail=False), files.sglang_document(detail=False)])
def test_aggregates_are_used_where_there_is_no_detail(tmp_path, document):
    """Milliseconds become seconds; p90 is not in the file and stays unknown."""
    run = read_run(str(files.write_json(tmp_path / "bench.json", document)))
    assert run.requests is None
    assert run.figure("itl_p50_s") == pytest.approx(0.1)
    assert run.figure("e2e_mean_s") == pytest.approx(1.75 / 3)
    assert math.isnan(run.figure("ttft_p90_s"))
    assert any("no detail" in note for note in run.notes)


def test_newer_vllm_files_have_latencies_without_detail(tmp_path):
    """Seconds, 0 for a request that failed."""
    document = files.vllm_document(detail=False, latencies=[0.8, 0.2, 0.75, 0.0])
    del document["mean_e2el_ms"], document["median_e2el_ms"], document["p99_e2el_ms"]
    run = read_run(str(files.write_json(tmp_path / "bench.json", document)))
    assert run.figure("e2e_p50_s") == pytest.approx(0.75)
    assert run.figure("e2e_p90_s") == pytest.approx(0.79)


def test_gaps_between_chunks_are_not_gaps_between_tokens(tmp_path):
    """Where a chunk holds several tokens, ITL is named as not comparable, and no aggregate stands in for it."""
    document = files.vllm_document()
    document["itls"] = [[0.3], [], [0.1, 0.4]]
    run = read_run(str(files.write_json(tmp_path / "bench.json", document)))
    assert math.isnan(run.figure("itl_p50_s"))
    assert run.figure("tpot_p50_s") == pytest.approx((0.15 + 0.5 / 3) / 2)
    reference = read_run(str(written(tmp_path, "measured")))
    [line] = not_comparable(reference, run)
    assert (
        line
        == "ITL not comparable: bench.json: 40.0 % of the tokens came together with others: the gaps are between chunks"
    )


def test_the_last_of_several_runs_is_taken_unless_one_is_chosen(tmp_path):
    """By --index or by #N, from 1; a note says that there are several."""
    first, last = files.vllm_document(duration=1.0), files.vllm_document(duration=9.0)
    for document in (first, last):
        del document["start_times"]
    path = str(files.write_json(tmp_path / "bench.json", first, last))
    assert read_run(path).figure("duration_s") == 9
    assert read_run(path).notes == ("the last of 2 runs in the file (--index chooses another)",)
    assert read_run(path, index=1).figure("duration_s") == 1
    assert read_run(f"{path}#1").figure("duration_s") == 1
    assert read_run(f"{path}#1").name == "bench.json#1"


def test_objects_printed_over_many_lines_are_read(tmp_path):
    """As a result that somebody formatted."""
    import json

    path = tmp_path / "bench.json"
    path.write_text(json.dumps(files.vllm_document(), indent=2), encoding="utf-8")
    assert read_run(str(path)).figure("ttft_p50_s") == pytest.approx(0.25)


def test_aiperf_says_what_it_left_out(tmp_path):
    """A failed request, and one of the warm-up."""
    run = read_run(str(written(tmp_path, "aiperf")))
    assert [note.split(" ", 1)[1] for note in run.notes] == [
        "requests failed or were cancelled and are left out",
        "requests of the warm-up are left out",
    ]


def test_a_folder_of_aiperf_is_read_by_its_detail(tmp_path):
    """And is called by its own name."""
    folder = tmp_path / "artifacts"
    folder.mkdir()
    files.write_json(folder / "profile_export.jsonl", *files.aiperf_lines())
    files.write_json(folder / "profile_export_aiperf.json", files.aiperf_document())
    run = read_run(str(folder))
    assert (run.name, run.requests is not None) == ("artifacts", True)


def test_guidellm_without_requests_has_the_mean_gap_only(tmp_path):
    """Its weighted mean is the mean gap; its percentiles of requests' means are not used, nor its TPOT with TTFT."""
    run = read_run(str(files.write_json(tmp_path / "benchmarks.json", files.guidellm_document(kept=False))))
    assert run.figure("itl_mean_s") == pytest.approx(0.16)
    assert run.figure("ttft_mean_s") == pytest.approx(0.95 / 3)
    assert math.isnan(run.figure("itl_p50_s"))
    assert math.isnan(run.figure("tpot_mean_s"))
    assert "not interpolated" in run.remarks["ttft"]


def test_one_of_several_guidellm_benchmarks(tmp_path):
    """The number becomes part of the name."""
    path = files.write_json(tmp_path / "benchmarks.json", files.guidellm_document(benchmarks=3))
    assert read_run(str(path), index=2).name == "benchmarks.json#2"


def test_a_policy_is_chosen_by_label_or_by_its_folder(tmp_path):
    """What was rejected is counted in a note."""
    folder = files.simulated_folder(tmp_path / "out", ("orca", "vllm"))
    for run in (read_run(str(folder), label="orca"), read_run(str(folder / "orca"))):
        assert run.name == "out/orca"
        assert run.notes == ("1 of 4 requests were rejected or stalled and are left out",)


def test_a_run_without_stored_gaps_has_four_statistics_of_them(tmp_path):
    """As an output folder of a version that did not write them."""
    folder = files.simulated_folder(tmp_path / "out")
    (folder / "vllm" / "itl_quantiles.csv").unlink()
    run = read_run(str(folder))
    assert run.distribution("itl") is None
    assert run.figure("itl_mean_s") == pytest.approx(0.16)


def test_a_measured_folder_without_token_times(tmp_path):
    """The summary in run.json has the gaps."""
    folder = files.measured_folder(tmp_path / "run")
    (folder / "token_times.jsonl.gz").unlink()
    run = read_run(str(folder))
    assert run.figure("itl_p50_s") == 0.1
    assert run.facts["engine"] == "vllm 0.23.0"
    names = [figure.name for figure in figures_of(run, run)]
    assert "itl_p50_s" in names
    assert "itl_p90_s" not in names


def test_a_real_output_folder_gives_its_own_summary(tmp_path):
    """What simulate-trace wrote into summary.csv comes out again, from its requests and its stored quantiles."""
    trace = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i / 9},{40 + i},{1 + i % 30}\n" for i in range(60))
    (tmp_path / "trace.csv").write_text(trace, encoding="utf-8")
    costs = "costs: {linear: {fixed_ns: 8000000, per_token_ns: 50000}}\ntrace: trace.csv\npolicies: [vllm]\n"
    (tmp_path / "tiny.yaml").write_text(costs, encoding="utf-8")
    options = [str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out"), "--no-plots", "--no-report", "--quiet"]
    assert CliRunner().invoke(simulate_trace, options, catch_exceptions=False).exit_code == 0
    run = read_run(str(tmp_path / "out"))
    row = pd.read_csv(tmp_path / "out/summary.csv").iloc[0]
    for name in (*RATES, *(f"{latency}_{which}_s" for latency in LATENCIES for which in STATISTICS)):
        assert run.figure(name) == pytest.approx(row[name], rel=1e-9), name
    assert run.iterations == tmp_path / "out/vllm/iterations.csv"
    assert run.facts["kv_cache.block_size"] == "16"


def test_aiperf_aggregates_of_chunks_are_not_of_tokens(tmp_path):
    """The file counts its gaps: with two fewer than there are tokens to wait for, ITL is not compared."""
    document = files.aiperf_document()
    document["inter_chunk_latency"]["count"] = 3
    run = read_run(str(files.write_json(tmp_path / "profile.json", document)))
    assert math.isnan(run.figure("itl_p50_s"))
    assert run.not_comparable["itl"].startswith("40.0 % of the tokens came together")
    assert run.figure("e2e_p50_s") == pytest.approx(0.75)
