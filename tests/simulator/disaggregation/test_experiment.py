"""Disaggregated systems in an experiment: keys, files that come out, and mistakes in them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from simulator.errors import InputError
from simulator.experiment_keys import resolve_experiment
from tests.simulator.conftest import LINEAR, Simulate, csv_bytes, resolved, summary, write_yaml

POOLS = {
    "prefill": {"policy": "orca", "replicas": 2},
    "decode": {"policy": "vllm", "max_num_seqs": 4, "kv_cache": {"num_blocks": 99}},
    "network": {"gb_per_s": 10, "latency_us": 100},
}


def systems(*entries: Any, **keys: Any) -> dict[str, Any]:
    return {"trace": "tiny.csv", "costs": LINEAR, "policies": list(entries)} | keys


def pools(**changes: Any) -> dict[str, Any]:
    return {"disaggregated": POOLS | changes, "label": "2P+1D"}


@pytest.fixture
def run(simulate: Simulate, here: Path) -> Path:
    """The output folder of three GPUs that are shared, and three in pools."""
    shared = {"policy": "vllm", "label": "shared", "parallel": {"replicas": 3}}
    write_yaml(here / "both.yaml", **systems(shared, pools()))
    answer = simulate("both.yaml", "--out", "run", drawn=True)
    assert answer.code == 0, answer.err
    return here / "run"


def test_both_are_rows_of_one_summary(run: Path) -> None:
    """On as many GPUs, and throughput is told for each of them."""
    rows = summary(run)
    assert rows["policy"].to_dict() == {"shared": "vllm", "2P+1D": "disaggregated"}
    assert rows["gpus"].tolist() == [3, 3]
    assert rows["num_finished"].tolist() == [5, 5]
    assert (rows["output_tokens_per_s_per_gpu"] * 3).tolist() == pytest.approx(rows["output_tokens_per_s"].tolist())
    only_of_pools = ["transfer_mean_s", "transfer_p99_s", "decode_queue_mean_s", "prefill_idle_fraction"]
    assert rows.loc["shared", only_of_pools].isna().all()
    assert rows.loc["2P+1D", only_of_pools].notna().all()


def test_a_transfer_takes_what_the_model_s_shape_says(run: Path) -> None:
    """128 KiB a token (32 layers, 8 KV heads, 128 wide, key and value, two bytes) at 10 GB/s, and 100 us."""
    rows = pd.read_csv(run / "2P+1D/requests.csv")
    alone = rows.iloc[0]
    assert alone["prompt_tokens"] == 40
    assert alone["transfer_s"] == pytest.approx(100e-6 + 40 * 131072 / 10e9, abs=1e-9)
    assert rows["decode_replica"].tolist() == [2] * 5
    assert set(rows["replica"]) == {0, 1}


def test_iterations_say_whose_they_are(run: Path) -> None:
    """The prefill pool decodes nothing, the decode pool has no prompts; both pools are in pools.csv."""
    steps = pd.read_csv(run / "2P+1D/iterations.csv").groupby("pool").sum(numeric_only=True)
    assert steps["num_decodes"].to_dict()["prefill"] == 0
    assert steps["num_prefills"].to_dict()["decode"] == 0
    table = pd.read_csv(run / "pools.csv")
    assert table["pool"].tolist() == ["prefill", "decode"]
    assert table["gpus"].tolist() == [2, 1]
    assert table["policy"].tolist() == ["orca", "vllm"]
    shares = table["busy_fraction"] + table["bubble_fraction"] + table["idle_fraction"]
    assert shares.tolist() == pytest.approx([1, 1])


def test_the_resolved_experiment_repeats_the_run(run: Path, simulate: Simulate) -> None:
    """To the byte, with everything of both pools spelled out."""
    entry = resolved(run)["policies"][1]["disaggregated"]
    assert entry["decode"]["kv_cache"]["num_blocks"] == 99
    assert entry["prefill"]["max_batch_size"] == 64
    assert simulate(run / "experiment.yaml", "--out", "again").code == 0
    assert csv_bytes(run) == csv_bytes(run.parent / "again")


def test_in_a_file_of_its_own(here: Path, simulate: Simulate) -> None:
    """A policy file can hold a system."""
    write_yaml(here / "pools.yaml", disaggregated=POOLS)
    assert simulate("tiny.yaml", "--policy", "pools.yaml", "--out", "run").code == 0
    assert summary(here / "run").index.tolist() == ["pools"]


def test_pools_of_ready_settings_and_of_several_gpus(here: Path) -> None:
    """`sarathi-serve` in the prefill pool; four GPUs a replica in two stages, of which two pairs send."""
    write_yaml(here / "x.yaml")
    entry = pools(
        prefill={"policy": "sarathi-serve", "tensor": 2, "pipeline": 2}, decode={"policy": "orca", "tensor": 2}
    )
    experiment = resolve_experiment(systems(entry), path=here / "x.yaml")
    system: Any = experiment.systems["2P+1D"]
    assert system.gpus == 4 + 2
    assert system.prefill.policies[0].options["max_prefills_per_batch"] == 0
    link = system.make_link()
    assert link.send(1000, 0) == 100_000 + 1000 * 131072 // 2 // 10


def test_a_pool_with_costs_of_its_own(here: Path) -> None:
    """Another GPU for decodes."""
    slow = {"linear": {"fixed_ns": 50_000_000}}
    entry = pools(decode={"policy": "orca", "costs": slow})
    system: Any = resolve_experiment(systems(entry), path=here / "x.yaml").systems["2P+1D"]
    assert system.prefill.costs != system.decode.costs


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (pools(transfer="fast"), "disaggregated.transfer: should be 'whole' or 'layerwise', not 'fast'"),
        (
            pools(network="h200-nvlin"),
            'disaggregated.network: unknown network "h200-nvlin"; did you mean "h200-nvlink"?',
        ),
        (pools(network={"gb_per_s": 0}), "disaggregated.network.gb_per_s: should be greater than 0"),
        (pools(prefil={}), 'disaggregated.prefil: unknown key; did you mean "prefill"?'),
        (pools(prefill={"policy": "orca", "replicas": 0}), "prefill pool: "),
        (pools(prefill={"replicas": 2}), "prefill pool: "),
        (pools(decode={"policy": "orca", "max_batch": 3}), 'did you mean "max_batch_size"?'),
        ({"disaggregated": {"prefill": {"policy": "orca"}}}, "disaggregated.decode: missing"),
        ({"disaggregated": 3}, "should be a mapping, not 3"),
        ({**pools(), "policy": "orca"}, "unknown key beside disaggregated"),
        ({"policy": "orca", "parallel": 3}, "parallel: should be a mapping, not 3"),
        ({"policy": "orca", "parallel": {"replica": 3}}, 'did you mean "replicas"?'),
    ],
)
def test_mistakes_are_named(here: Path, entry: dict[str, Any], complaint: str) -> None:
    """With the key, and what was meant."""
    path = write_yaml(here / "wrong.yaml", **systems(entry))
    with pytest.raises(InputError) as caught:
        resolve_experiment(yaml.safe_load(path.read_text()), path=path)
    assert complaint in str(caught.value)


def sizes(here: Path, simulate: Simulate, setting: str) -> list[int]:
    """`max_batch_size` of a policy, a prefill and a decode pool beside it, each 64 by default, with one setting."""
    write_yaml(here / "both.yaml", **systems("orca", pools(decode={"policy": "orca"})))
    answer = simulate("both.yaml", "--set", setting, "--out", "run", "--force")
    assert answer.code == 0, answer.err
    alone, two = resolved(here / "run")["policies"]
    pair = two["disaggregated"]
    return [alone["max_batch_size"], pair["prefill"]["max_batch_size"], pair["decode"]["max_batch_size"]]


def test_settings_reach_pools(here: Path, simulate: Simulate) -> None:
    """What all policies take pools take too; by the label both do, by the pool's name one."""
    assert sizes(here, simulate, "max_batch_size=2") == [2, 2, 2]
    assert sizes(here, simulate, "2P+1D.max_batch_size=2") == [64, 2, 2]
    assert sizes(here, simulate, "2P+1D.decode.max_batch_size=2") == [64, 64, 2]
    assert sizes(here, simulate, "orca.max_batch_size=2") == [2, 64, 64]


@pytest.mark.parametrize("key", ["parallel", "label"])
def test_keys_of_an_entry_inside_a_pool(key: str, here: Path, simulate: Simulate) -> None:
    """They would be passed over in silence; GPUs of a pool are keys of its own."""
    write_yaml(here / "both.yaml", **systems(pools(decode={"policy": "vllm", key: {"replicas": 2}})))
    complaint = simulate("both.yaml", "--out", "no").complaint
    assert f"disaggregated.decode.{key}: a pool has no such key; it has tensor, pipeline, replicas" in complaint


def test_a_pool_by_the_name_of_its_policy(here: Path, simulate: Simulate) -> None:
    """`decode: vllm` is `decode: {policy: vllm}`."""
    write_yaml(here / "both.yaml", **systems(pools(decode="sarathi-serve")))
    assert simulate("both.yaml", "--out", "run").code == 0
    assert resolved(here / "run")["policies"][0]["disaggregated"]["decode"]["chunk_size"] == 2048


def test_settings_that_no_pool_has(here: Path, simulate: Simulate) -> None:
    """The nearest option of the pool's policy is named."""
    write_yaml(here / "both.yaml", **systems("orca", pools()))
    complaint = simulate("both.yaml", "--set", "2P+1D.max_batch_sise=2", "--out", "no").complaint
    assert "max_batch_sise" in complaint
    assert "max_batch_size" in complaint


def test_a_policy_that_remembers_cannot_run_a_decode_pool(here: Path, simulate: Simulate) -> None:
    """It would not know whom it has."""
    code = """from simulator.policy import PolicyBase, Remembering
from dataclasses import dataclass
class Planner(Remembering):
    def plan(self, view): return None
@dataclass(frozen=True)
class Mine(PolicyBase):
    def start(self, view, *, contents): return Planner()
"""
    (here / "remembers.py").write_text(code)
    write_yaml(here / "both.yaml", **systems(pools(decode={"policy": "remembers:Mine"})))
    assert "cannot run a decode pool" in simulate("both.yaml", "--out", "run").complaint
