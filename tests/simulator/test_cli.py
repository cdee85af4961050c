"""`simulate-trace` from the command line to the files: every option, every refusal, and runs that repeat themselves."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from simulator import __version__
from simulator.plugins import policy_names
from tests.simulator.conftest import LINEAR, Simulate, csv_bytes, resolved, summary, write_yaml
from tests.simulator.tables import SHAPE, write_small_table
from tests.simulator.test_experiment import OWN_POLICY
from tests.simulator.test_models import LLAMA


class TestRun:
    def test_files(self, simulate: Simulate, here: Path) -> None:
        """A run leaves a summary, two tables a policy and the resolved experiment, and says where."""
        answer = simulate("tiny.yaml", "--policy", "orca", "--policy", "vllm", "--out", "out")
        assert (answer.code, answer.err) == (0, "")
        assert "written to out" in answer.out
        found = {str(path.relative_to(here / "out")) for path in (here / "out").rglob("*") if path.is_file()}
        tables = {
            f"{label}/{name}.csv" for label in ("orca", "vllm") for name in ("requests", "iterations", "itl_quantiles")
        }
        assert found == {"summary.csv", "bubbles.csv", "experiment.yaml", *tables}

    def test_plots_and_page(self, simulate: Simulate, here: Path) -> None:
        """Unless told otherwise it draws, and writes a page."""
        assert simulate("tiny.yaml", "--out", "out", drawn=True).code == 0
        names = {path.name for path in (here / "out").iterdir()}
        assert {"report.html", "ttft.png", "ttft.svg", "throughput.png"} <= names

    def test_no_plots(self, simulate: Simulate, here: Path) -> None:
        """--no-plots leaves the page, --no-report the plots."""
        assert simulate("tiny.yaml", "--out", "page", "--no-plots", drawn=True).code == 0
        assert (here / "page" / "report.html").exists()
        assert not list((here / "page").glob("*.png"))

    def test_numbers(self, simulate: Simulate, here: Path) -> None:
        """One request of 10 + 3 tokens at 1 s a step, read back from the CSVs."""
        (here / "one.csv").write_text("arrival_s,prompt_tokens,output_tokens,request_id\n2,10,3,first\n")
        write_yaml(here / "one.yaml", trace="one.csv", costs={"linear": {"fixed_ns": 10**9}}, policies=["orca"])
        simulate("one.yaml", "--out", "out")
        row = pd.read_csv(here / "out" / "orca" / "requests.csv").iloc[0]
        assert (row["request_id"], row["status"]) == ("first", "finished")
        assert (row["first_token_s"], row["finish_s"], row["ttft_s"], row["e2e_s"]) == (3, 5, 1, 3)
        steps = pd.read_csv(here / "out" / "orca" / "iterations.csv")
        assert steps["end_s"].tolist() == [3, 4, 5]
        assert summary(here / "out").loc["orca", "duration_s"] == 3

    def test_empty_fields(self, simulate: Simulate, here: Path) -> None:
        """A time that does not exist is an empty field."""
        (here / "one.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n")
        simulate("tiny.yaml", "--policy", "orca", "--out", "out")
        write_yaml(here / "one.yaml", trace="one.csv", costs=LINEAR, policies=["orca"])
        simulate("one.yaml", "--out", "single")
        header, line = (here / "single" / "orca" / "requests.csv").read_text().splitlines()
        fields = dict(zip(header.split(","), line.split(","), strict=True))
        assert (fields["tpot_s"], fields["itl_max_s"]) == ("", "")
        assert fields["ttft_s"] != ""

    def test_default_folder(self, simulate: Simulate, here: Path) -> None:
        """Without --out a folder named after trace and time, and never the same twice."""
        for _ in range(2):
            assert simulate("tiny.yaml").code == 0
        folders = list((here / "results").iterdir())
        assert len(folders) == 2
        assert all(folder.name.startswith("tiny-") for folder in folders)

    def test_trace_instead_of_a_yaml(self, simulate: Simulate, here: Path) -> None:
        """A trace alone is run with --costs through the policies named."""
        write_small_table(here)
        assert simulate("tiny.csv", "--costs", "small.csv", "--policy", "orca", "--out", "out").code == 0
        assert resolved(here / "out")["costs"] == str(here / "small.csv")
        assert resolved(here / "out")["provenance"]["costs_sha256"]

    def test_without_anything(self, simulate: Simulate, here: Path) -> None:
        """The bundled trace and table through three policies."""
        assert simulate("--limit", 20, "--out", "out").code == 0
        assert list(summary(here / "out").index) == ["orca", "sarathi", "vllm"]
        assert resolved(here / "out")["trace"] == "traces/conversation.csv"

    def test_all_policies(self, simulate: Simulate, here: Path) -> None:
        """The bundled experiment is found from anywhere, and so is what it names."""
        assert simulate("policies/all.yaml", "--limit", 20, "--out", "out").code == 0
        made = resolved(here / "out")
        assert made["trace"] == "traces/conversation.csv"
        assert list(summary(here / "out").index) == [entry["label"] for entry in made["policies"]]

    def test_memory_reserved_for_the_longest_sequence_is_noted(self, simulate: Simulate, here: Path) -> None:
        """Requests that wait because others hold memory that they may never need: how many fit."""
        policy = {"policy": "static", "max_model_len": 512}
        write_yaml(here / "e.yaml", trace="tiny.csv", costs=LINEAR, policies=[policy], kv_cache={"num_blocks": 40})
        out = simulate("e.yaml", "--out", "out").out
        assert "the 512 tokens reserved for a request fit 1 times; max_batch_size 64 is out of reach" in out

    def test_a_limit_that_is_not_set_is_not_noted(self, simulate: Simulate, here: Path) -> None:
        """A policy's `max_batch_size` may be none."""
        write_yaml(here / "e.yaml", trace="tiny.csv", costs=LINEAR, policies=["tgi"], kv_cache={"num_blocks": 40})
        answer = simulate("e.yaml", "--out", "out")
        assert (answer.code, answer.err) == (0, "")
        assert "max_batch_size" not in answer.out

    def test_long_iteration_log(self, simulate: Simulate, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A log above the limit is written as Parquet, with the rows of the CSV."""
        simulate("tiny.yaml", "--out", "short")
        monkeypatch.setattr("simulator.output.CSV_ROWS", 3)
        simulate("tiny.yaml", "--out", "long")
        assert not (here / "long" / "orca" / "iterations.csv").exists()
        rows = duckdb.read_parquet(str(here / "long" / "orca" / "iterations.parquet")).df()
        pd.testing.assert_frame_equal(rows, pd.read_csv(here / "short" / "orca" / "iterations.csv"))

    def test_provenance(self, simulate: Simulate, here: Path) -> None:
        """The resolved experiment says with what and from what it was made."""
        simulate("tiny.yaml", "--out", "out")
        made = resolved(here / "out")["provenance"]
        assert made["command"].startswith("simulate-trace tiny.yaml --out out")
        assert made["versions"]["chunkwise"] == __version__
        assert (made["trace_format"], made["trace_requests"], len(made["trace_sha256"])) == ("native", 5, 64)


class TestOptions:
    def run(self, simulate: Simulate, *arguments: object) -> dict[str, Any]:
        answer = simulate("tiny.yaml", "--out", "out", *arguments)
        assert answer.code == 0, answer
        return resolved(Path("out"))

    def test_policy_by_name_yaml_and_class(self, simulate: Simulate, here: Path) -> None:
        """--policy takes a name, a YAML and module:Class, any number of times, and overrides the YAML's."""
        write_yaml(here / "chunk.yaml", policy="sarathi", chunk_size=64)
        (here / "own_policies_4.py").write_text(OWN_POLICY)
        given = ("orca", "chunk.yaml", "own_policies_4:OneByOne", "orca")
        made = self.run(simulate, *(word for name in given for word in ("--policy", name)))
        assert [entry["label"] for entry in made["policies"]] == ["orca", "chunk", "OneByOne", "orca-2"]
        assert list(summary(here / "out").index) == ["orca", "chunk", "OneByOne", "orca-2"]
        assert made["policies"][1]["chunk_size"] == 64

    def test_costs(self, simulate: Simulate, here: Path) -> None:
        """--costs overrides the YAML's."""
        write_small_table(here)
        assert self.run(simulate, "--costs", "small.csv")["costs"] == str(here / "small.csv")

    def test_model(self, simulate: Simulate) -> None:
        """--model decides the memory."""
        assert self.run(simulate, "--model", "llama-13b")["model"] == "llama-13b"

    def test_engine(self, simulate: Simulate) -> None:
        """--engine none is GPU time only."""
        assert self.run(simulate, "--engine", "none")["engine"] == "none"

    def test_num_blocks(self, simulate: Simulate, here: Path) -> None:
        """--num-blocks sizes the cache and keeps the YAML's block size."""
        write_yaml(here / "tiny.yaml", trace="tiny.csv", costs=LINEAR, policies=["orca"], kv_cache={"block_size": 32})
        made = self.run(simulate, "--num-blocks", 40)
        assert (made["kv_cache"]["num_blocks"], made["kv_cache"]["block_size"]) == (40, 32)
        assert pd.read_csv(here / "out" / "orca" / "iterations.csv")["free_blocks"].max() < 40

    def test_limit(self, simulate: Simulate, here: Path) -> None:
        """--limit runs the first requests."""
        self.run(simulate, "--limit", 2)
        assert summary(here / "out").loc["orca", "num_requests"] == 2

    def test_limit_after_sorting(self, simulate: Simulate, here: Path) -> None:
        """--limit with --repair: the first by time, and what was mended is counted."""
        (here / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens\n5,1,1\n0,2,1\n3,3,1\n4,0,1\n")
        answer = simulate("tiny.yaml", "--out", "out", "--repair", "--limit", 2)
        assert pd.read_csv(here / "out" / "orca" / "requests.csv")["prompt_tokens"].tolist() == [2, 3]
        assert "note: dropped 1 row with zero tokens (first: line 5)" in answer.out
        assert "sorted 2 rows that were out of order (first: line 3)" in answer.out
        assert "dropped 1 row with zero tokens (first: line 5)" in resolved(here / "out")["provenance"]["notes"]

    def test_speedup(self, simulate: Simulate, here: Path) -> None:
        """--speedup divides arrivals."""
        self.run(simulate, "--speedup", 2)
        assert pd.read_csv(here / "out" / "orca" / "requests.csv")["arrival_s"].tolist() == [0, 0.25, 0.5, 1, 1]

    def test_seed(self, simulate: Simulate) -> None:
        """--seed is kept with the run."""
        assert self.run(simulate, "--seed", 17)["seed"] == 17

    def test_jobs(self, simulate: Simulate, here: Path) -> None:
        """Two processes give the bytes of one, summary rows in the order of the policies."""
        given = [word for name in ("vllm", "orca", "sarathi") for word in ("--policy", name)]
        simulate("tiny.yaml", *given, "--out", "one", "--jobs", 1)
        simulate("tiny.yaml", *given, "--out", "two", "--jobs", 2)
        assert csv_bytes(here / "one") == csv_bytes(here / "two")
        assert list(summary(here / "two").index) == ["vllm", "orca", "sarathi"]

    def test_quiet(self, simulate: Simulate, here: Path) -> None:
        """--quiet prints nothing."""
        answer = simulate("tiny.yaml", "--out", "out", "--quiet")
        assert (answer.code, answer.out, answer.err) == (0, "", "")
        assert (here / "out" / "summary.csv").exists()

    def test_set(self, simulate: Simulate, here: Path) -> None:
        """--set with and without a label."""
        given = ["--policy", "vllm", "--policy", "vllm", "--policy", "sarathi"]
        made = self.run(simulate, *given, "--set", "max_num_seqs=9", "--set", "vllm-2.max_num_seqs=3")
        assert [entry["max_num_seqs"] for entry in made["policies"]] == [9, 3, 9]
        assert (here / "out" / "vllm-2" / "requests.csv").exists()

    @pytest.mark.parametrize(
        ("what", "expected"),
        [
            ("policies", [*policy_names(), "sarathi-serve", "max_num_batched_tokens", "chunk_size (512)"]),
            ("costs", ["h200/llama-3.1-8b", "NVIDIA H200"]),
            ("models", ["llama-3.1-8b", "16.1 GB", "128 KiB", "llama-13b"]),
            ("formats", ["native", "arrival_s"]),
        ],
    )
    def test_list(self, simulate: Simulate, here: Path, what: str, expected: list[str]) -> None:
        """--list says what can be named, and runs nothing."""
        answer = simulate("--list", what)
        assert (answer.code, answer.err) == (0, "")
        assert all(word in answer.out for word in expected)
        assert not (here / "results").exists()

    @pytest.mark.parametrize("flag", ["-h", "--help"])
    def test_help(self, simulate: Simulate, flag: str) -> None:
        """-h is a short manual with all options and examples."""
        answer = simulate(flag)
        assert answer.code == 0
        for option in ("policy", "set", "costs", "model", "engine", "num-blocks", "out", "force", "limit", "speedup"):
            assert f"--{option}" in answer.out
        for option in ("repair", "seed", "jobs", "no-plots", "no-report", "quiet", "list"):
            assert f"--{option}" in answer.out
        assert "Examples:" in answer.out
        assert "simulate-trace mytrace.csv" in answer.out

    def test_version(self, simulate: Simulate) -> None:
        """--version names the project's version."""
        assert simulate("--version").out == f"simulate-trace, version {__version__}\n"


class TestRepeat:
    def test_every_byte(self, simulate: Simulate, here: Path) -> None:
        """`simulate-trace experiment.yaml` repeats every CSV of a run with a table, settings, limit and speed-up."""
        write_small_table(here)
        given = ["--policy", "vllm", "--policy", "sarathi-serve", "--policy", "orca", "--costs", "small.csv"]
        given += ["--num-blocks", 60, "--speedup", 3, "--limit", 4, "--seed", 3, "--set", "vllm.max_num_seqs=2"]
        assert simulate("tiny.csv", *given, "--out", "first").code == 0
        assert simulate("first/experiment.yaml", "--out", "second").code == 0
        assert csv_bytes(here / "first") == csv_bytes(here / "second")
        assert len(csv_bytes(here / "first")) == 11

    def test_again_and_again(self, simulate: Simulate, here: Path) -> None:
        """The experiment of a repetition repeats it again, and differs only in its provenance."""
        simulate("tiny.yaml", "--out", "first")
        simulate("first/experiment.yaml", "--out", "second")
        one, two = resolved(here / "first"), resolved(here / "second")
        assert {**one, "provenance": 0} == {**two, "provenance": 0}

    def test_from_another_folder(self, simulate: Simulate, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It does so wherever it is run from."""
        write_small_table(here)
        simulate("tiny.csv", "--costs", "small.csv", "--policy", "orca", "--out", "first")
        elsewhere = here / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        assert simulate(here / "first" / "experiment.yaml", "--out", "second").code == 0
        assert csv_bytes(here / "first") == csv_bytes(elsewhere / "second")

    def test_paths_beside_the_yaml(self, simulate: Simulate, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An experiment's relative paths are beside it, wherever it is run from."""
        elsewhere = here / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        assert simulate("../tiny.yaml", "--out", "out").code == 0
        assert resolved(elsewhere / "out")["trace"] == str(here / "tiny.csv")

    def test_own_policy_beside_the_yaml(self, simulate: Simulate, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A policy class and a model that lie beside the first experiment are found again."""
        (here / "own_policies_6.py").write_text(OWN_POLICY)
        (here / "config.json").write_text(json.dumps(LLAMA))
        policies = ["own_policies_6:OneByOne"]
        write_yaml(here / "own.yaml", trace="tiny.csv", costs=LINEAR, model="config.json", policies=policies)
        elsewhere = here / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        assert simulate("../own.yaml", "--out", "first").code == 0
        monkeypatch.delitem(sys.modules, "own_policies_6")
        answer = simulate("first/experiment.yaml", "--out", "second")
        assert answer.code == 0, answer.err
        assert csv_bytes(elsewhere / "first") == csv_bytes(elsewhere / "second")

    def test_changed_table(self, simulate: Simulate, here: Path) -> None:
        """A repetition with a changed table says that the results will differ."""
        path = write_small_table(here)
        simulate("tiny.csv", "--costs", "small.csv", "--policy", "orca", "--out", "first")
        path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
        answer = simulate("first/experiment.yaml", "--out", "second")
        assert answer.code == 0
        assert "small.csv has changed since" in answer.out.replace("\n", "")


class TestOutputFolder:
    def test_non_empty(self, simulate: Simulate, here: Path) -> None:
        """A folder that holds anything is refused and left as it is."""
        (here / "out").mkdir()
        (here / "out" / "mine.txt").write_text("mine")
        message = simulate("tiny.yaml", "--out", "out").complaint
        assert message == '--out: folder "out" is not empty; choose another or pass --force'
        assert [path.name for path in (here / "out").iterdir()] == ["mine.txt"]

    def test_empty(self, simulate: Simulate, here: Path) -> None:
        """An empty folder will do, and one inside folders that do not exist."""
        (here / "out").mkdir()
        assert simulate("tiny.yaml", "--out", "out").code == 0
        assert simulate("tiny.yaml", "--out", "a/b/c").code == 0

    def test_file(self, simulate: Simulate, here: Path) -> None:
        """A file is no folder."""
        (here / "out").write_text("mine")
        assert simulate("tiny.yaml", "--out", "out").complaint == '--out: "out" is a file; give a folder'
        assert "cannot make folder" in simulate("tiny.yaml", "--out", "out/deeper").complaint
        assert (here / "out").read_text() == "mine"

    def test_force(self, simulate: Simulate, here: Path) -> None:
        """--force takes away an earlier run, plots of it included, and leaves what is not of a run."""
        simulate("tiny.yaml", "--policy", "orca", "--policy", "sarathi", "--out", "out")
        for name in ("mine.txt", "ttft.png", "ttft.svg", "report.html"):
            (here / "out" / name).write_text("made before")
        (here / "out" / "orca" / "notes.txt").write_text("mine")
        assert simulate("tiny.yaml", "--policy", "vllm", "--out", "out", "--force").code == 0
        found = {str(path.relative_to(here / "out")) for path in (here / "out").rglob("*") if path.is_file()}
        run = {"summary.csv", "bubbles.csv", "experiment.yaml"}
        run |= {f"vllm/{name}.csv" for name in ("requests", "iterations", "itl_quantiles")}
        assert found == run | {"mine.txt", "orca/notes.txt"}

    def test_force_where_no_run_was(self, simulate: Simulate, here: Path) -> None:
        """A file of the user's where this run would write is refused; others of common names stay."""
        (here / "out" / "data").mkdir(parents=True)
        (here / "out" / "data" / "requests.csv").write_text("mine")
        (here / "out" / "experiment.yaml").write_text("a: mine")
        answer = simulate("tiny.yaml", "--out", "out", "--force")
        assert (answer.code, (here / "out" / "experiment.yaml").read_text()) == (2, "a: mine")
        assert "is not of an earlier run" in answer.err
        (here / "out" / "experiment.yaml").unlink()
        assert simulate("tiny.yaml", "--out", "out", "--force").code == 0
        assert simulate("tiny.yaml", "--out", "out", "--force").code == 0
        assert (here / "out" / "data" / "requests.csv").read_text() == "mine"

    def test_force_spares_the_input(self, simulate: Simulate, here: Path) -> None:
        """A trace that this run would overwrite is refused."""
        assert simulate("tiny.yaml", "--out", "out").code == 0
        (here / "out" / "summary.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n")
        answer = simulate("out/summary.csv", "--out", "out", "--force")
        assert answer.code == 2
        assert "is an input of this run" in answer.err
        assert (here / "out" / "summary.csv").read_text().startswith("arrival_s")

    def test_wrong_input_leaves_no_folder(self, simulate: Simulate, here: Path) -> None:
        """An input error is found before anything is written."""
        assert simulate("tiny.yaml", "--policy", "vlm", "--out", "out").code == 2
        (here / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,-1,1\n")
        assert simulate("tiny.yaml", "--out", "out").code == 2
        assert not (here / "out").exists()


BAD_ROWS = [
    ("0,-5,1", "line 2, prompt_tokens: -5 tokens"),
    ("0,many,1", 'line 2, prompt_tokens: "many" is not a number'),
    ("0,5,0", "line 2, output_tokens: 0 tokens"),
    ("nan,5,1", 'line 2, arrival_s: "nan" is not a finite number'),
    ("9,5,1\n3,5,1", "line 3, arrival_s: arrives 6 s before"),
]


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["tyni.csv"], 'trace "tyni.csv" not found; did you mean "tiny.csv"?'),
            (["tyni.yaml"], 'experiment "tyni.yaml" not found'),
            (["tiny.yaml", "--policy", "vlm"], 'unknown policy "vlm"; did you mean "vllm"?'),
            (["tiny.yaml", "--policy", "vllm.yml"], 'policy file "vllm.yml" not found'),
            (["tiny.yaml", "--policy", "all"], "policies.0: an experiment, no policy; run it: simulate-trace "),
            (["tiny.yaml", "--set", "max_batch_sise=3"], 'did you mean "max_batch_size"?'),
            (["tiny.yaml", "--set", "max_batch_size=0"], "max_batch_size: "),
            (
                ["tiny.yaml", "--costs", "h200/llama-3.1-8"],
                'no cost table "h200/llama-3.1-8"; did you mean "h200/llama-3.1-8b"?',
            ),
            (["tiny.yaml", "--model", "lama-13b"], 'unknown model "lama-13b"; did you mean "llama-13b"?'),
            (["tiny.yaml", "--engine", "nine"], 'unknown engine profile "nine"; did you mean "none"?'),
            (["tiny.yaml", "--num-blocks", "1"], "kv_cache.num_blocks: "),
            (["tiny.yaml", "--limit", "0"], "limit: "),
            (["tiny.yaml", "--limit", "-3"], "limit: "),
            (["tiny.yaml", "--speedup", "0"], "speedup: "),
            (["tiny.yaml", "--speedup", "nan"], "speedup: "),
            (["tiny.yaml", "--seed", "-1"], "seed: "),
        ],
    )
    def test_arguments(self, simulate: Simulate, arguments: list[str], message: str) -> None:
        """One message with what is wrong and the nearest that is not, exit status 2."""
        assert message in simulate(*arguments, "--out", "out").complaint

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--polcy", "vllm"], "No such option"),
            (["--limit", "many"], "'many' is not a valid integer"),
            (["--jobs", "0"], "--jobs"),
            (["--list", "policy"], "policies"),
            (["one.csv", "two.csv"], "unexpected extra argument"),
        ],
    )
    def test_usage(self, simulate: Simulate, arguments: list[str], message: str) -> None:
        """So do options that do not exist or cannot be read."""
        answer = simulate(*arguments)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
        assert "Traceback" not in answer.err

    @pytest.mark.parametrize(("rows", "message"), BAD_ROWS)
    def test_trace_rows(self, simulate: Simulate, here: Path, rows: str, message: str) -> None:
        """A row that cannot be is named by file, line and column."""
        (here / "tiny.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
        assert simulate("tiny.yaml").complaint.startswith(f"{here}/tiny.csv, {message}")

    def test_trace_column(self, simulate: Simulate, here: Path) -> None:
        """So is an unknown column."""
        (here / "tiny.csv").write_text("arrival_s,prompt_token,output_tokens\n0,1,1\n")
        message = simulate("tiny.yaml").complaint
        assert message.startswith(
            f'{here}/tiny.csv, line 1, prompt_token: unknown column; did you mean "prompt_tokens"?'
        )

    def test_experiment_key(self, simulate: Simulate, here: Path) -> None:
        """An unknown key is named by file and key."""
        write_yaml(here / "tiny.yaml", trace="tiny.csv", costs=LINEAR, polices=["orca"])
        message = simulate("tiny.yaml").complaint
        assert message.startswith(f'{here}/tiny.yaml, polices: unknown key; did you mean "policies"?')

    def test_another_models_table(self, simulate: Simulate, here: Path) -> None:
        """The cost table of another model is refused."""
        write_small_table(here)
        message = simulate("tiny.csv", "--costs", "small.csv", "--model", "llama-3.1-8b").complaint
        assert 'was measured for "two-layers", not "llama-3.1-8b"' in message

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("num_local_experts", 8, "a mixture-of-experts model"),
            ("quantization_config", {"quant_method": "awq"}, "a quantized model"),
        ],
    )
    def test_models_that_cannot_be_priced(
        self, simulate: Simulate, here: Path, key: str, value: object, words: str
    ) -> None:
        """Mixture-of-experts and quantized models are refused in words."""
        (here / "config.json").write_text(json.dumps({**LLAMA, key: value}))
        assert words in simulate("tiny.yaml", "--model", "config.json").complaint

    def test_missing_sidecar(self, simulate: Simulate, here: Path) -> None:
        """A table without its sidecar is refused."""
        write_small_table(here).with_suffix(".yaml").unlink()
        assert "the sidecar of the cost table is missing" in simulate("tiny.csv", "--costs", "small.csv").complaint

    def test_markup_in_names(self, simulate: Simulate, here: Path) -> None:
        """Names with brackets are printed as they are."""
        (here / "[red]x.csv").write_text((here / "tiny.csv").read_text())
        write_yaml(here / "tiny.yaml", trace="[red]x.csv", costs=LINEAR, policies=["orca"])
        assert "[red]x" in simulate("tiny.yaml", "--out", "out").out


class TestRequestsThatNeverRun:
    def test_rejected(self, simulate: Simulate, here: Path) -> None:
        """A prompt that can never fit is rejected with a counted warning; the run goes on and exits 0."""
        answer = simulate("tiny.yaml", "--policy", "vllm", "--num-blocks", 11, "--out", "out")
        assert (answer.code, answer.err) == (0, "")
        text = " ".join(answer.out.split())
        assert "1 of 5 requests rejected (first: request 1: needs 19 KV-cache blocks at once, the cache has 10)" in text
        rows = pd.read_csv(here / "out" / "vllm" / "requests.csv")
        assert rows["status"].tolist() == ["finished", "rejected", "finished", "finished", "finished"]
        assert rows.loc[1, ["first_scheduled_s", "finish_s", "ttft_s", "itl_max_s", "e2e_s"]].isna().all()
        row = summary(here / "out").loc["vllm"]
        assert (row["num_requests"], row["num_finished"]) == (5, 4)

    def test_all_rejected(self, simulate: Simulate, here: Path) -> None:
        """Even when nothing can run the files are written, the page included."""
        given = ("--policy", "vllm", "--num-blocks", 2)
        answer = simulate("tiny.yaml", *given, "--out", "out", "--no-plots", drawn=True)
        assert answer.code == 0
        assert "5 of 5 requests rejected" in " ".join(answer.out.split())
        assert summary(here / "out").loc["vllm", "num_finished"] == 0
        assert (here / "out" / "report.html").exists()

    def test_stalled(self, simulate: Simulate, here: Path) -> None:
        """A sequence that outgrows the cache is stalled with a counted warning; its tokens stay in the table."""
        (here / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,20,100\n1,20,2\n")
        answer = simulate("tiny.yaml", "--policy", "vllm", "--num-blocks", 4, "--out", "out")
        assert answer.code == 0
        assert "1 of 2 requests stalled (first: request 0: grew to 49 tokens" in " ".join(answer.out.split())
        row = pd.read_csv(here / "out" / "vllm" / "requests.csv").iloc[0]
        assert (row["status"], row["generated_tokens"]) == ("stalled", 29)
        assert pd.isna(row["finish_s"])
        assert row["first_token_s"] > 0

    def test_cut(self, simulate: Simulate) -> None:
        """Outputs that `max_model_len` cuts are counted."""
        answer = simulate("tiny.yaml", "--policy", "vllm", "--set", "max_model_len=302", "--out", "out")
        assert answer.code == 0
        assert "1 request reached max_model_len; output was cut there" in answer.out

    def test_beyond_the_table(self, simulate: Simulate, here: Path) -> None:
        """Steps beyond the measured grid are counted."""
        write_small_table(here)
        answer = simulate("tiny.csv", "--costs", "small.csv", "--policy", "orca", "--out", "out")
        assert "of more than the 256 tokens measured" in " ".join(answer.out.split())


class TestOwnPolicyThatBreaks:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_mistake(self, simulate: Simulate, here: Path, jobs: int) -> None:
        """A policy that gives more tokens than there are is stopped in one line, with its name and the numbers."""
        text = OWN_POLICY.replace("request.known)", "request.known + 1)")
        (here / f"own_policies_5{jobs}.py").write_text(text)
        given = ("--policy", "orca", "--policy", f"own_policies_5{jobs}:OneByOne", "--jobs", jobs)
        answer = simulate("tiny.yaml", *given, "--out", "out")
        message = "simulate-trace: OneByOne gave request 0 (40 + 5 tokens) 41 tokens; it has 40 left\n"
        assert (answer.code, answer.err) == (1, message)

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("return 5", "OneByOne.plan returned 5; it must be a Batch or None"),
            ("raise KeyError('x')", "line 18: KeyError: 'x'"),
            ("raise SystemExit(0)", "line 18: SystemExit: 0"),
        ],
    )
    def test_failure(self, simulate: Simulate, here: Path, body: str, said: str) -> None:
        """Whatever a policy's plan does, one line says so and where; it never passes for a run."""
        module = "own_policies_6" + "".join(filter(str.isalnum, body))
        (here / f"{module}.py").write_text(
            OWN_POLICY.replace("if view.decoding:", f"{body}\n        if view.decoding:")
        )
        answer = simulate("tiny.yaml", "--policy", f"{module}:OneByOne", "--out", "out")
        assert (answer.code, answer.err.count("\n")) == (1, 1)
        assert said in answer.err


class TestAbsurdNumbers:
    def test_times_beyond_the_clock(self, simulate: Simulate, here: Path) -> None:
        """A run that outlasts 2^63 nanoseconds is refused in words."""
        (here / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens\n9223372036.8,10,500\n")
        answer = simulate("tiny.yaml", "--policy", "vllm", "--out", "out")
        assert answer.code == 2
        assert "292 years" in answer.err


class TestColumnsThatDoNothing:
    def test_sessions(self, simulate: Simulate, here: Path) -> None:
        """A column that is read and not acted on is said aloud."""
        (here / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens,session_id\n0,5,1,s\n")
        answer = simulate("tiny.yaml", "--policy", "vllm", "--out", "out")
        assert answer.code == 0
        assert "note: session_id: turns arrive at their recorded times" in answer.out


def test_console_script() -> None:
    """As a program: exit status and streams are those of the function."""
    command = [sys.executable, "-c", "from simulator.cli import main; main()", "--list", "models"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert SHAPE.name not in done.stdout
    assert "llama-3.1-8b" in done.stdout


def test_torch_is_not_loaded() -> None:
    """Simulating needs no torch."""
    check = "import sys, simulator.cli, simulator.runner, simulator.output; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
