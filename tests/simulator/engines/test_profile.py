"""Engine profiles: by name or from a file, what their keys mean, and how mistakes are named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.engines.profile import CudaGraphs, HostTime, Mode, engine_names, load_engine, padded_tokens
from simulator.engines.times import EngineTimes
from simulator.errors import InputError
from simulator.experiment_keys import resolve_experiment
from simulator.listing import print_listing
from simulator.step_times import GpuTimes
from tests.simulator.conftest import LINEAR, Simulate, resolved, summary, write_yaml

OWN: dict[str, Any] = {
    "name": "own",
    "about": "an engine for tests",
    "synchronous": {
        "schedule": {"step_us": 100, "sequence_us": 1.5},
        "full": {"prepare": {"step_us": 1000}},
        "arrival_us": 300,
    },
    "asynchronous": {"schedule": {"step_us": 50}, "arrival_us": 2000, "fit": "made up"},
    "cuda_graphs": {"sizes": [1, 2, 4], "every": {8: 64}, "per_max_num_seqs": 2},
}


def refused(folder: Path, **changes: Any) -> str:
    """The complaint about a profile with these keys changed, without the file's path."""
    path = write_yaml(folder / "own.yaml", **{**OWN, **changes})
    with pytest.raises(InputError) as caught:
        load_engine(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}, ")
    return message.removeprefix(f"{path}, ")


class TestLoading:
    """A name, a path, or none."""

    def test_none_is_no_profile(self) -> None:
        """GPU time only."""
        assert load_engine("none") is None

    @pytest.mark.parametrize("name", sorted(engine_names()))
    def test_bundled_profiles_load_under_their_names(self, name: str) -> None:
        """And say what they are."""
        profile = load_engine(name)
        assert profile is not None
        assert profile.name == name
        assert profile.about

    def test_a_file_is_found_beside_the_yaml(self, tmp_path: Path) -> None:
        """Its keys become host times; what is left out is 0."""
        write_yaml(tmp_path / "own.yaml", **OWN)
        profile = load_engine("own.yaml", beside=tmp_path)
        assert profile is not None
        assert profile.synchronous == Mode(schedule=HostTime(100, 1.5), full=profile.synchronous.full, arrival_us=300)
        assert profile.synchronous.full.prepare == HostTime(1000, 0)
        assert profile.mode(1) is profile.synchronous
        assert profile.mode(2) is profile.asynchronous

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        """And with all that are known."""
        with pytest.raises(InputError) as caught:
            load_engine("vllm-0.32")
        message = str(caught.value)
        assert message.startswith('engine: unknown engine profile "vllm-0.32"; did you mean "vllm-0.23"? engines: none')
        assert message.endswith("or the path of a YAML")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sinchronous": {}}, 'sinchronous: unknown key; did you mean "synchronous"?'),
            ({"synchronous": {"full": {"layers_us": 3}}}, "synchronous.full.layers_us: unknown key; did you mean"),
            ({"synchronous": {"schedule": 100}}, "synchronous.schedule: should be a mapping, not 100"),
            ({"synchronous": {"arrival_us": "long"}}, "synchronous.arrival_us: should be a valid number, not 'long'"),
            ({"synchronous": {"collect_us": -1}}, "synchronous.collect_us: should be greater than or equal to 0"),
            ({"synchronous": {"aftermath": {"steps": 1.5}}}, "synchronous.aftermath.steps: should be a valid integer"),
            ({"asynchronous": None}, "asynchronous: should be a mapping, not None"),
            ({"cuda_graphs": {"sizes": [1, 4, 2]}}, "cuda_graphs: captured sizes should ascend, not 1, 4, 2"),
            ({"cuda_graphs": {"sizes": [1, 1]}}, "cuda_graphs: captured sizes should ascend, not 1, 1"),
            ({"cuda_graphs": {"sizes": [0, 1]}}, "cuda_graphs.sizes: should be greater than or equal to 1"),
            ({"cuda_graphs": {"sizes": 8}}, "cuda_graphs.sizes: should be a valid tuple, not 8"),
            ({"cuda_graphs": {"per_max_num_seqs": 0}}, "cuda_graphs.per_max_num_seqs: should be greater than or equal"),
            ({"cuda_graphs": {"every": {0: 8}}}, "cuda_graphs.every"),
            ({"cuda_graphs": {"every": {1: 10**9}}}, "cuda_graphs.every"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        """With file and key."""
        assert refused(tmp_path, **changes).startswith(message)

    def test_a_missing_mode_is_named(self, tmp_path: Path) -> None:
        """A profile has both."""
        path = write_yaml(tmp_path / "half.yaml", **{key: OWN[key] for key in OWN if key != "asynchronous"})
        with pytest.raises(InputError, match="asynchronous: missing"):
            load_engine(str(path))


class TestCapturedSizes:
    """Which numbers of tokens have graphs, and what is padded to what."""

    def test_strides_go_on_from_where_the_last_ended(self) -> None:
        """1, 2 and 4, then every 8 up to 24, then every 16 up to 64."""
        graphs = CudaGraphs((1, 2, 4), {8: 24, 16: 64})
        assert graphs.captured(None) == [1, 2, 4, 8, 16, 24, 32, 48, 64]

    def test_the_policy_limits_them(self) -> None:
        """To twice its sequences here; without a number of sequences nothing does."""
        graphs = CudaGraphs((1, 2, 4), {8: 24}, per_max_num_seqs=2)
        assert graphs.captured(8) == [1, 2, 4, 8, 16]
        assert graphs.captured(None) == [1, 2, 4, 8, 16, 24]

    def test_every_number_up_to_the_largest_is_padded(self) -> None:
        """To the next captured; what is above has no place in the list."""
        assert padded_tokens([1, 2, 4, 8]) == [0, 1, 2, 4, 4, 8, 8, 8, 8]
        assert padded_tokens([]) == [0]


class TestRuns:
    """`engine:` of an experiment and `--engine`."""

    def test_none_is_the_gpu_alone(self, here: Path) -> None:
        """Named or left out."""
        assert here.is_dir()
        for keys in ({}, {"engine": "none"}):
            made = resolve_experiment({"trace": "tiny.csv", "costs": LINEAR, **keys})
            run = made.policies[0]
            assert isinstance(made.make_times(made.make_costs(), made.make_policy(run), run), GpuTimes)

    def test_the_policy_chooses_the_mode(self, here: Path) -> None:
        """`async_scheduling` of each: arrivals take 300 us or 2 ms to be seen."""
        write_yaml(here / "own.yaml", **OWN)
        policies = [{"policy": "vllm", "async_scheduling": flying, "label": str(flying)} for flying in (True, False)]
        made = resolve_experiment({"trace": "tiny.csv", "costs": LINEAR, "engine": "own.yaml", "policies": policies})
        times = [made.make_times(made.make_costs(), made.make_policy(run), run) for run in made.policies]
        assert all(isinstance(clock, EngineTimes) for clock in times)
        assert [clock.arrival_ns for clock in times] == [2_000_000, 300_000]

    @pytest.mark.parametrize("engine", ["vllm-0.23", "own.yaml"])
    def test_a_run_repeats_byte_for_byte(self, simulate: Simulate, here: Path, engine: str) -> None:
        """From its `experiment.yaml`, from another folder too: a file is known by its whole path."""
        write_yaml(here / "own.yaml", **OWN)
        assert simulate("tiny.yaml", "--engine", engine, "--policy", "vllm", "--out", "first").code == 0
        assert resolved(here / "first")["engine"] == (engine if engine != "own.yaml" else str(here / "own.yaml"))
        (here / "first/experiment.yaml").rename(here / "first/again.yaml")
        assert simulate("first/again.yaml", "--out", "second").code == 0
        for name in ("summary.csv", "vllm/requests.csv", "vllm/iterations.csv"):
            assert (here / "first" / name).read_bytes() == (here / "second" / name).read_bytes()

    def test_a_host_takes_time(self, simulate: Simulate, here: Path) -> None:
        """The same requests wait longer for their first token than with the GPU alone."""
        write_yaml(here / "own.yaml", **OWN)
        ttft = []
        for engine in ("none", "own.yaml"):
            assert simulate("tiny.yaml", "--engine", engine, "--out", "out", "--force").code == 0
            ttft.append(summary(here / "out")["ttft_mean_s"]["orca"])
        assert ttft[1] >= ttft[0] + 0.0003

    def test_a_mistake_in_a_file_is_the_users(self, simulate: Simulate, here: Path) -> None:
        """One message with file and key, status 2."""
        write_yaml(here / "own.yaml", **{**OWN, "cuda_graphs": {"sizes": [4, 2]}})
        complaint = simulate("tiny.yaml", "--engine", "own.yaml").complaint
        assert complaint == f"{here / 'own.yaml'}, cuda_graphs: captured sizes should ascend, not 4, 2"

    def test_help_tells_what_an_engine_is(self, simulate: Simulate) -> None:
        """A bundled name, a file, and that the default is none."""
        answer = simulate("--help")
        text = " ".join(answer.out.split())
        assert "--engine PROFILE" in text
        assert "such as vllm-0.23, or the path of a YAML. [default: none, GPU time only]" in text
        assert "[policies|costs|models|engines|networks|formats]" in text

    def test_they_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With what they are and what their modes were fitted on."""
        print_listing("engines")
        text = " ".join(capsys.readouterr().out.split())
        assert "none GPU time only" in text
        for name in engine_names():
            profile = load_engine(name)
            assert profile is not None
            assert f"{name} {profile.about}" in text
            for mode in ("synchronous", "asynchronous"):
                assert f" {mode}: " in text


def test_a_profile_reads_the_same_after_writing(tmp_path: Path) -> None:
    """YAML has lists and mappings only; nothing is lost."""
    path = write_yaml(tmp_path / "own.yaml", **OWN)
    first = load_engine(str(path))
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=True))
    assert load_engine(str(tmp_path / "again.yaml")) == first
