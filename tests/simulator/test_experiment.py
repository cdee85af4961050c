"""Experiments: what a YAML's keys mean, what is filled in, and how its mistakes are named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.bundled import bundled_roots
from simulator.costs import LinearCosts
from simulator.errors import InputError
from simulator.experiment import Experiment, as_yaml_keys
from simulator.experiment_keys import resolve_experiment
from simulator.files import load_yaml
from simulator.models import load_model
from simulator.runner import load_trace
from simulator.table_costs import TableCosts
from tests.simulator.conftest import LINEAR, write_yaml
from tests.simulator.tables import GPU, SHAPE, write_small_table

pytestmark = pytest.mark.usefixtures("here")


def resolve(settings: tuple[str, ...] = (), **keys: Any) -> Experiment:
    """The experiment of these keys over the tiny trace at linear costs."""
    return resolve_experiment({"trace": "tiny.csv", "costs": LINEAR, **keys}, settings=settings)


def refused(settings: tuple[str, ...] = (), **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        resolve(settings, **keys)
    return str(caught.value)


def labels(experiment: Experiment) -> list[str]:
    return [run.label for run in experiment.policies]


class TestDefaults:
    def test_policies(self) -> None:
        """Orca, SARATHI and vLLM are compared unless others are named."""
        assert labels(resolve()) == ["orca", "sarathi", "vllm"]

    def test_everything_else(self) -> None:
        """No overhead, blocks of 16 in 0.92 of the GPU's memory, one GPU, seed 0, the whole trace as it is."""
        made = resolve()
        assert (made.engine, made.seed, made.limit, made.speedup, made.repair) == ("none", 0, None, 1.0, False)
        assert (made.kv_cache.block_size, made.kv_cache.gpu_memory_utilization) == (16, 0.92)
        assert (made.parallel.tensor, made.parallel.pipeline, made.parallel.replicas) == (1, 1, 1)

    def test_blocks_from_memory(self) -> None:
        """Without `num_blocks`: the share of the memory less the weights, in whole blocks."""
        made = resolve()
        shape = load_model("llama-3.1-8b")
        usable = int(0.92 * made.surroundings.gpu_memory_bytes) - shape.weight_bytes
        assert made.num_blocks == usable // (16 * 131072)

    def test_blocks_from_another_share(self) -> None:
        """Half the memory holds about half the blocks."""
        half, whole = (resolve(kv_cache={"gpu_memory_utilization": share}).num_blocks for share in (0.5, 1.0))
        weights = load_model("llama-3.1-8b").weight_bytes
        memory = resolve().surroundings.gpu_memory_bytes
        assert half / whole == pytest.approx((memory / 2 - weights) / (memory - weights), rel=1e-4)

    def test_the_host_of_another_engine(self) -> None:
        """Whose host is not the profile's is said; vLLM's own, and a scheduler of no one engine, need no word."""
        notes = resolve(engine="vllm-0.23", policies=["vllm", "orca", "sglang", "tgi"]).notes
        hosts = [note for note in notes if "its host takes" in note]
        assert [note.partition(":")[0] for note in hosts] == ["sglang", "tgi"]
        assert hosts[0] == "sglang: its host takes the times of vllm-0.23, since SGLang's are not known"
        assert not any("its host takes" in note for note in resolve(policies=["sglang"]).notes)

    def test_given_blocks(self) -> None:
        """`num_blocks` is taken as it is."""
        assert resolve(kv_cache={"num_blocks": 777, "block_size": 32}).num_blocks == 777

    def test_linear_costs(self) -> None:
        """Inline costs need no table; a note says whose memory is assumed."""
        made = resolve()
        assert made.costs == LinearCosts(fixed_ns=10_000_000, per_token_ns=100_000)
        assert (made.costs_sha256, made.model_source) == ("", "llama-3.1-8b")
        assert any("memory and defaults are those of an NVIDIA H200" in note for note in made.notes)

    def test_options_are_spelled_out(self) -> None:
        """Every option of every policy has its value, also where it depends on GPU and model."""
        run = resolve(policies=["vllm"]).policies[0]
        assert run.options["max_num_batched_tokens"] == 8192
        assert run.options["max_model_len"] == 131072

    def test_what_costs_leave_out_of_a_model(self) -> None:
        """A model that is priced as a simpler one says so in every run."""
        made = resolve(model="gpt3-175b", kv_cache={"num_blocks": 100})
        assert "gpt3-175b: every other layer's attention is sparse; all are priced as dense" in made.notes

    def test_model_without_table(self) -> None:
        """`model` decides memory and the longest sequence."""
        made = resolve(model="llama-13b", policies=["vllm"])
        assert made.policies[0].options["max_model_len"] == 2048
        assert made.num_blocks < resolve().num_blocks / 4


class TestTables:
    def test_gpu_and_model_of_the_table(self, here: Path) -> None:
        """A table brings its model and its GPU's memory."""
        write_small_table(here)
        made = resolve(costs="small.csv", policies=["vllm"])
        assert (made.model, made.surroundings.gpu_name) == (SHAPE, GPU.name)
        assert isinstance(made.make_costs(), TableCosts)
        assert made.policies[0].options["max_model_len"] == SHAPE.max_position_embeddings

    def test_costs_are_those_that_were_checked(self, here: Path) -> None:
        """A table is read once, so that prices are those of the checksum even if its file changes or goes."""
        path = write_small_table(here)
        made = resolve(costs="small.csv", policies=["vllm"])
        before = made.make_costs().step_ns(0, 0, 0, [(0, 16)])
        path.unlink()
        assert made.make_costs().step_ns(0, 0, 0, [(0, 16)]) == before

    def test_model_by_name(self, here: Path) -> None:
        """The table's own model may be named."""
        write_small_table(here)
        assert resolve(costs="small.csv", model=SHAPE.name).model == SHAPE

    def test_same_shape_by_another_name(self, here: Path) -> None:
        """A model of the same shape will do, whatever its name."""
        write_small_table(here)
        keys = {name: getattr(SHAPE, name) for name in SHAPE.__slots__ if name != "name"}
        write_yaml(here / "twin.yaml", **keys)
        assert resolve(costs="small.csv", model="twin.yaml").model == SHAPE

    def test_another_model(self, here: Path) -> None:
        """Another model's table is refused, and the message says what to do."""
        write_small_table(here)
        message = refused(costs="small.csv", model="llama-13b")
        assert 'was measured for "two-layers", not "llama-13b"' in message
        assert "--costs" in message
        assert "profile-gpu" in message

    def test_changed_table(self, here: Path) -> None:
        """An experiment that was run with another version of the table says so."""
        write_small_table(here)
        made = resolve(costs="small.csv", provenance={"costs_sha256": "0" * 64})
        assert any("has changed since" in note for note in made.notes)
        made = resolve(costs="small.csv", provenance={"costs_sha256": made.costs_sha256})
        assert not any("has changed since" in note for note in made.notes)


class TestLabels:
    def test_name(self) -> None:
        """A policy is labelled by its name, a YAML's by its file, a class by its name, unless it says otherwise."""
        entries = ["orca", "sarathi-serve", {"policy": "vllm", "label": "mine"}, {"policy": "vllm"}]
        assert labels(resolve(policies=entries)) == ["orca", "sarathi-serve", "mine", "vllm"]

    def test_repeated(self) -> None:
        """The second of a label gets -2, the third -3."""
        assert labels(resolve(policies=["orca"] * 3)) == ["orca", "orca-2", "orca-3"]

    def test_repeated_with_a_clash(self) -> None:
        """A number that is taken is passed over."""
        entries = [{"policy": "orca", "label": "orca-2"}, "orca", "orca"]
        assert labels(resolve(policies=entries)) == ["orca-2", "orca", "orca-3"]

    def test_number(self) -> None:
        """A label may be a number in YAML."""
        assert labels(resolve(policies=[{"policy": "orca", "label": 512}])) == ["512"]

    @pytest.mark.parametrize(
        "label", ["", "../up", "a/b", "..", ".", "x" * 81, " lead", "new\nline", "a:b", "*", "summary.csv"]
    )
    def test_impossible(self, label: str) -> None:
        """A label names a folder, so not every text will do."""
        message = refused(policies=[{"policy": "orca", "label": label}])
        assert "policies.0, label: label " in message
        assert "names a folder" in message


class TestSettings:
    def options(self, *settings: str, policies: Any = ("orca", "sarathi", "vllm")) -> list[dict[str, Any]]:
        return [run.options for run in resolve(settings, policies=list(policies)).policies]

    def test_every_policy_that_has_it(self) -> None:
        """Without a label all policies with the option take it, the others are left alone."""
        orca, sarathi, vllm = self.options("max_num_seqs=7")
        assert "max_num_seqs" not in orca
        assert (sarathi["max_num_seqs"], vllm["max_num_seqs"]) == (7, 7)

    def test_one_policy(self) -> None:
        """With a label only that policy takes it."""
        _, sarathi, vllm = self.options("vllm.max_num_seqs=7")
        assert (sarathi["max_num_seqs"], vllm["max_num_seqs"]) == (128, 7)

    def test_a_ready_setting_with_changes(self) -> None:
        """A mapping can begin from ready settings; what it says itself goes before them."""
        made = resolve(policies=[{"policy": "sarathi-serve", "max_num_seqs": 7}])
        run = made.policies[0]
        assert (run.label, run.policy) == ("sarathi-serve", "sarathi")
        assert (run.options["chunk_size"], run.options["max_num_seqs"]) == (2048, 7)

    def test_repeated_label(self) -> None:
        """Two of a kind are told apart by their labels."""
        one, two = self.options("vllm-2.max_num_batched_tokens=2048", policies=("vllm", "vllm"))
        assert (one["max_num_batched_tokens"], two["max_num_batched_tokens"]) == (8192, 2048)

    def test_label_with_dots(self) -> None:
        """A label may hold dots."""
        entries = [{"policy": "vllm", "label": "v"}, {"policy": "vllm", "label": "v.0.23"}]
        one, two = self.options("v.0.23.max_num_seqs=9", policies=entries)
        assert (one["max_num_seqs"], two["max_num_seqs"]) == (1024, 9)

    def test_last_wins(self) -> None:
        """Later settings override earlier ones."""
        assert self.options("chunk_size=1", "chunk_size=2", policies=["sarathi"])[0]["chunk_size"] == 2

    def test_values_are_yaml(self) -> None:
        """false is a truth value, priority a word."""
        (made,) = self.options("vllm.async_scheduling=false", "scheduling_policy=priority", policies=["vllm"])
        assert (made["async_scheduling"], made["scheduling_policy"]) == (False, "priority")

    def test_defaults_follow(self) -> None:
        """What depends on another option follows the setting."""
        (made,) = self.options("max_num_batched_tokens=64", policies=["vllm"])
        assert made["max_num_seqs"] == 64

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("chunk_size", "--set: should be [LABEL.]KEY=VALUE, not 'chunk_size'"),
            ("chunksize=3", '--set chunksize: no policy of this run has this option; did you mean "chunk_size"?'),
            ("vlm.max_num_seqs=3", '--set vlm.max_num_seqs: no such label; did you mean "vllm"?'),
            ("chunk_size=[", "--set chunk_size=[: not a YAML value: '['"),
        ],
    )
    def test_mistakes(self, setting: str, message: str) -> None:
        """A setting that fits nothing is named, with the nearest that would."""
        assert refused((setting,)).startswith(message)

    @pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "", "null"])
    def test_wrong_value(self, value: str) -> None:
        """A value that the option cannot have names it."""
        assert "chunk_size: " in refused((f"chunk_size={value}",))

    def test_unknown_option_of_a_label(self) -> None:
        """An option that the labelled policy does not have."""
        assert 'unknown key; did you mean "chunk_size"?' in refused(("sarathi.chunksize=3",))


class TestPolicies:
    def test_yaml_file(self, here: Path) -> None:
        """A policy may be a YAML of its options."""
        write_yaml(here / "small.yaml", policy="sarathi", chunk_size=128)
        run = resolve(policies=["small.yaml"]).policies[0]
        assert (run.label, run.policy, run.options["chunk_size"]) == ("small", "sarathi", 128)

    def test_bundled_yaml(self) -> None:
        """A bundled YAML is found by its path or its name."""
        one, two = resolve(policies=["policies/sarathi-serve.yaml", "sarathi-serve"]).policies
        assert one.options == two.options
        assert one.options["max_prefills_per_batch"] == 0

    def test_own_class(self, here: Path) -> None:
        """`module:Class` beside the YAML or in the current folder; its fields are its options."""
        (here / "own_policies_1.py").write_text(OWN_POLICY)
        (run,) = resolve(policies=[{"policy": "own_policies_1:OneByOne", "patience": 3}]).policies
        assert (run.label, run.options) == ("OneByOne", {"patience": 3})

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_such_module_1:X", "cannot import the module of policy"),
            ("own_policies_2:OneByTwo", 'has no "OneByTwo"; did you mean "OneByOne"?'),
            (
                "own_policies_2:Batch",
                "is not a policy: it does not inherit PolicyBase; a policy is a frozen dataclass that inherits",
            ),
            ("own_policies_2:PolicyBase", "is not a policy"),
            ("own_policies_2:VALUE", "is not a policy: it is no class"),
            ("own_policies_2:Thawed", "it is no frozen dataclass: put @dataclass(frozen=True) before it"),
            ("own_policies_2:Planless", "it has no plan(view)"),
            ("own_policies_2:Ahead", "it has a method steps_in_flight, which must be a property or an attribute"),
            ("broken_policies_2:X", "failed: ZeroDivisionError: division by zero"),
        ],
    )
    def test_own_class_mistakes(self, here: Path, name: str, message: str) -> None:
        """A module or class that will not do says why."""
        (here / "own_policies_2.py").write_text(OWN_POLICY)
        (here / "broken_policies_2.py").write_text("1 / 0\n")
        assert message in refused(policies=[name])

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([], "policies: no policy given"),
            (["vlm"], 'unknown policy "vlm"; did you mean "vllm"?'),
            (["policies/vlm.yaml"], 'policies.0: policy file "policies/vlm.yaml" not found; did you mean "vllm.yaml"?'),
            ([{"label": "x"}], "policies.0, policy: should be a policy's name"),
            ([{"policy": 3}], "policies.0, policy: should be a policy's name"),
            (["all"], "policies.0: an experiment, no policy; run it: simulate-trace "),
            ([{"policy": "all"}], "policies.0: an experiment, no policy; run it: simulate-trace "),
            ([{"policy": "orca", "max_batch_sise": 3}], 'max_batch_sise: unknown key; did you mean "max_batch_size"?'),
            ("orca", "policies: "),
            ([3], "policies: "),
        ],
    )
    def test_mistakes(self, entries: Any, message: str) -> None:
        """A policy that cannot be is named with its place and the nearest that can."""
        assert message in refused(policies=entries)

    def test_yaml_mistake_names_the_file(self, here: Path) -> None:
        """A wrong option in a policy's YAML is reported with that file."""
        path = write_yaml(here / "small.yaml", policy="sarathi", chunk_sise=128)
        assert refused(policies=["small.yaml"]).startswith(f"{path}, chunk_sise: unknown key")


class TestKeys:
    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"polices": []}, 'polices: unknown key; did you mean "policies"? keys: costs, engine,'),
            ({"kv_cache": {"blocks": 3}}, "kv_cache.blocks: unknown key; did you mean"),
            ({"kv_cache": 3}, "kv_cache: should be a mapping, not 3"),
            ({"kv_cache": {"num_blocks": 1}}, "kv_cache.num_blocks: "),
            ({"kv_cache": {"block_size": 0}}, "kv_cache.block_size: "),
            ({"kv_cache": {"gpu_memory_utilization": 1.1}}, "kv_cache.gpu_memory_utilization: "),
            ({"kv_cache": {"gpu_memory_utilization": 0.05}}, "kv_cache.gpu_memory_utilization: the weights of llama"),
            ({"parallel": {"tensor": 0}}, "parallel.tensor: "),
            ({"parallel": {"pipeline": 33}}, "parallel.pipeline: 33 stages, but the model has 32 layers"),
            ({"parallel": {"pipeline": 2, "pipeline_layers": [9, 9]}}, "parallel.pipeline_layers: 9 + 9 = 18 layers; "),
            ({"parallel": {"pipeline": 2, "pipeline_layers": [32]}}, "parallel.pipeline_layers: 1 numbers of layers"),
            ({"parallel": {"pipeline_layers": [0, 32]}}, "parallel.pipeline_layers"),
            ({"parallel": {"pipeline": 2, "pipeline_layers": []}}, "parallel.pipeline_layers: 0 numbers of layers"),
            ({"parallel": {"pipeline": 10**20}}, "parallel.pipeline: 1"),
            ({"pipeline_network": "nvlink9"}, 'pipeline_network: unknown network "nvlink9"; did you mean'),
            ({"parallel": {"replicas": 0}}, "parallel.replicas: "),
            ({"parallel": {"router": "round_robin"}}, "parallel.router: should be 'round-robin', "),
            ({"parallel": {"tensors": 2}}, 'parallel.tensors: unknown key; did you mean "tensor"?'),
            ({"engine": "vlm"}, 'engine: unknown engine profile "vlm"; '),
            ({"model": "llama-3.1-9b"}, 'model: unknown model "llama-3.1-9b"; did you mean "llama-3.1-8b"?'),
            ({"costs": "no/such"}, 'costs: no cost table "no/such"; '),
            ({"costs": {"liner": {}}}, 'costs.liner: unknown form; did you mean "linear"?'),
            ({"costs": {"linear": 3}}, "costs: should be a mapping"),
            ({"costs": {}}, "costs: should be a mapping"),
            ({"costs": {"linear": {"fixd_ns": 3}}}, 'costs.linear.fixd_ns: unknown key; did you mean "fixed_ns"?'),
            ({"costs": {"linear": {"fixed_ns": -3}}}, "costs.linear.fixed_ns: "),
            ({"costs": {"linear": {"fixed_ns": 0.5}}}, "costs.linear.fixed_ns: "),
            ({"costs": {"linear": {}}}, "costs.linear: a step must cost something"),
            ({"seed": -1}, "seed: "),
            ({"seed": "one"}, "seed: "),
            ({"limit": 0}, "limit: "),
            ({"limit": 2.5}, "limit: "),
            ({"speedup": 0}, "speedup: "),
            ({"speedup": float("nan")}, "speedup: "),
            ({"speedup": "fast"}, "speedup: "),
            ({"repair": "yes"}, "repair: "),
            ({"trace": "tyni.csv"}, 'trace: trace "tyni.csv" not found; did you mean "tiny.csv"?'),
            ({"trace": 3}, "trace: "),
        ],
    )
    def test_mistakes(self, keys: dict[str, Any], message: str) -> None:
        """One message with the key, and the nearest valid one where there is one."""
        assert refused(**keys).startswith(message)

    def test_trace_is_a_folder(self, here: Path) -> None:
        """A folder is no trace."""
        assert str(here) in refused(trace=str(here))

    @pytest.mark.parametrize("raw", ["trace: [", "- a", "", "x", "\t"])
    def test_no_mapping(self, here: Path, raw: str) -> None:
        """A file that is no YAML mapping is named, a syntax error with its line."""
        path = here / "bad.yaml"
        path.write_text(raw)
        with pytest.raises(InputError, match=r"bad\.yaml"):
            load_yaml(path)

    def test_syntax_error_has_a_line(self, here: Path) -> None:
        """The line of a syntax error."""
        path = here / "bad.yaml"
        path.write_text("trace: a\npolicies: [orca\nseed: 0\n")
        with pytest.raises(InputError, match=r"bad\.yaml, line 3: not valid YAML"):
            load_yaml(path)

    def test_no_text(self, here: Path) -> None:
        """A binary file is no YAML."""
        path = here / "bad.yaml"
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(InputError, match=r"bad\.yaml"):
            load_yaml(path)

    def test_unsafe_yaml(self, here: Path) -> None:
        """A YAML that wants to run code is refused."""
        path = here / "bad.yaml"
        path.write_text("trace: !!python/object/apply:os.getcwd []\n")
        with pytest.raises(InputError, match="not valid YAML"):
            load_yaml(path)


class TestPaths:
    def test_beside_the_yaml(self, here: Path) -> None:
        """Trace, costs, model and policies are looked up beside the YAML first."""
        folder = here / "study"
        folder.mkdir()
        (folder / "tiny.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
        write_small_table(folder)
        write_yaml(folder / "chunk.yaml", policy="sarathi", chunk_size=99)
        (folder / "own_policies_3.py").write_text(OWN_POLICY)
        keys = {"trace": "tiny.csv", "costs": "small.csv", "policies": ["chunk.yaml", "own_policies_3:OneByOne"]}
        path = write_yaml(folder / "study.yaml", **keys)
        made = resolve_experiment(load_yaml(path), path=path)
        assert made.trace == folder / "tiny.csv"
        assert made.model == SHAPE
        assert [run.label for run in made.policies] == ["chunk", "OneByOne"]

    def test_current_folder(self, here: Path) -> None:
        """Then in the current folder."""
        folder = here / "study"
        folder.mkdir()
        path = write_yaml(folder / "study.yaml", trace="tiny.csv", costs=LINEAR)
        assert resolve_experiment(load_yaml(path), path=path).trace == here / "tiny.csv"

    def test_policy_folders(self, here: Path) -> None:
        """`policy_folders` says where own classes lie; resolving writes the folders that were searched."""
        (here / "far").mkdir()
        (here / "far" / "own_policies_7.py").write_text(OWN_POLICY)
        made = resolve(policies=["own_policies_7:OneByOne"], policy_folders=["far"])
        assert as_yaml_keys(made)["policy_folders"] == [str(here / "far")]
        assert "policy_folders" not in as_yaml_keys(resolve())

    def test_bundled(self) -> None:
        """Then among what ships with the project."""
        assert resolve(trace="traces/conversation.csv").trace.is_relative_to(bundled_roots()[-1])

    def test_bundled_trace_is_portable(self) -> None:
        """The resolved experiment names a bundled trace as a user would, any other by its whole path."""
        assert as_yaml_keys(resolve(trace="traces/conversation.csv"))["trace"] == "traces/conversation.csv"
        assert Path(as_yaml_keys(resolve())["trace"]).is_absolute()


def test_resolving_is_idempotent(here: Path) -> None:
    """The resolved keys, written and read, give the same experiment."""
    write_small_table(here)
    keys = {"kv_cache": {"block_size": 8}, "seed": 5, "limit": 3, "speedup": 1.5, "repair": True}
    one = resolve(policies=["orca", "orca", "sarathi-serve", "vllm"], costs="small.csv", **keys)
    written = yaml.safe_load(yaml.safe_dump(as_yaml_keys(one)))
    two = resolve_experiment(written)
    assert as_yaml_keys(two) == as_yaml_keys(one)
    assert [run.options for run in two.policies] == [run.options for run in one.policies]
    assert two.num_blocks == one.num_blocks


class TestTrace:
    def test_limit(self) -> None:
        """The first requests."""
        assert load_trace(resolve(limit=2)).prompt_tokens.tolist() == [40, 300]

    def test_limit_beyond_the_trace(self) -> None:
        """A limit above the number of requests is no limit."""
        assert len(load_trace(resolve(limit=99))) == 5

    def test_limit_after_sorting(self, here: Path) -> None:
        """With --repair the first requests by time, not by line."""
        (here / "mixed.csv").write_text("arrival_s,prompt_tokens,output_tokens\n5,1,1\n0,2,1\n3,3,1\n")
        trace = load_trace(resolve(trace="mixed.csv", repair=True, limit=2))
        assert trace.prompt_tokens.tolist() == [2, 3]

    def test_speedup(self, here: Path) -> None:
        """Arrivals are counted from the first and divided, half a nanosecond to the even one."""
        (here / "late.csv").write_text("arrival_s,prompt_tokens,output_tokens\n10,1,1\n12,1,1\n10.000000003,1,1\n")
        trace = load_trace(resolve(trace="late.csv", repair=True, speedup=2))
        assert trace.arrival_ns.tolist() == [0, 2, 10**9]  # 3 ns / 2 = 1.5, to the even 2

    def test_slowdown(self) -> None:
        """A factor below one stretches."""
        assert load_trace(resolve(speedup=0.5)).arrival_ns.tolist() == [0, 10**9, 2 * 10**9, 4 * 10**9, 4 * 10**9]

    def test_endless_slowdown(self) -> None:
        """A factor that would spread the arrivals beyond the clock is refused."""
        with pytest.raises(InputError, match="speedup: the arrivals would be spread over more than 292 years"):
            load_trace(resolve(speedup=1e-12))

    def test_without_speedup(self, here: Path) -> None:
        """Otherwise arrivals stay as they are."""
        (here / "late.csv").write_text("arrival_s,prompt_tokens,output_tokens\n10,1,1\n")
        assert load_trace(resolve(trace="late.csv")).arrival_ns.tolist() == [10**10]


OWN_POLICY = '''"""A policy of one's own."""

from dataclasses import dataclass

from simulator.core import DECODES_ONLY, Batch
from simulator.policy import PolicyBase

VALUE = 3


@dataclass(frozen=True)
class OneByOne(PolicyBase):
    """One request at a time."""

    patience: int = 0

    def plan(self, view):
        if view.decoding:
            return DECODES_ONLY
        for request in view.waiting:
            return Batch([(request, request.known)])
        return None


@dataclass
class Thawed(PolicyBase):
    def plan(self, view):
        return None


@dataclass(frozen=True)
class Planless(PolicyBase):
    pass


@dataclass(frozen=True)
class Ahead(OneByOne):
    def steps_in_flight(self):
        return 2
'''
