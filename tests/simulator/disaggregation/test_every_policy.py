"""Every policy in the pools: with memory short on either side, or a slow link, all requests are served to the end."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.plugins import policy_names
from tests.simulator.conftest import LINEAR, Simulate, summary, write_yaml

SEQUENCE = 120
"""No request is longer."""
LONGEST: dict[str, dict[str, Any]] = {"static": {"max_model_len": SEQUENCE}}
PREFILL: list[dict[str, Any]] = [
    *({"policy": name} | LONGEST.get(name, {}) for name in policy_names()),
    {"policy": "sglang", "disable_overlap_schedule": True},
    {"policy": "sglang", "disable_radix_cache": True, "chunked_prefill_size": 32},
    {"policy": "tgi", "prefill_chunking": False},
    {"policy": "static", "padding": True} | LONGEST["static"],
]
DECODE: list[dict[str, Any]] = [
    *({"policy": name} | LONGEST.get(name, {}) for name in policy_names() if name not in ("sglang", "tgi")),
    {"policy": "tensorrt-llm", "capacity_scheduler_policy": "STATIC_BATCH"},
    {"policy": "tensorrt-llm", "capacity_scheduler_policy": "MAX_UTILIZATION"},
]


def named(pool: dict[str, Any]) -> str:
    return "-".join(str(value) for value in pool.values())


@pytest.fixture
def crowd(here: Path) -> Path:
    """40 requests that come together, few of which fit into memory at once."""
    random = np.random.default_rng(0)
    rows = {"arrival_s": np.sort(random.uniform(0, 0.2, 40)).round(6), "prompt_tokens": random.integers(1, 81, 40)}
    pd.DataFrame(rows | {"output_tokens": random.integers(1, 41, 40)}).to_csv(here / "crowd.csv", index=False)
    return here


def served(crowd: Path, simulate: Simulate, prefill: dict[str, Any], decode: dict[str, Any], network: Any) -> None:
    entry = {"disaggregated": {"prefill": prefill, "decode": decode, "network": network}, "label": "1P+1D"}
    write_yaml(crowd / "pools.yaml", trace="crowd.csv", costs=LINEAR, policies=[entry])
    answer = simulate("pools.yaml", "--out", "run")
    assert answer.code == 0, answer.err
    row = summary(crowd / "run").loc["1P+1D"]
    assert row["num_finished"] == 40
    times = pd.read_csv(crowd / "run/1P+1D/requests.csv")
    assert (times["ttft_s"] > 0).all()
    assert (times["finish_s"] >= times["first_token_s"]).all()


@pytest.mark.parametrize("pool", PREFILL, ids=named)
def test_in_a_prefill_pool(pool: dict[str, Any], crowd: Path, simulate: Simulate) -> None:
    """Blocks of finished prompts come back only as slowly as the link takes their KV away."""
    small = {"kv_cache": {"num_blocks": 20}}
    served(crowd, simulate, pool | small, {"policy": "vllm"}, {"gb_per_s": 0.5})


@pytest.mark.parametrize("pool", DECODE, ids=named)
def test_in_a_decode_pool(pool: dict[str, Any], crowd: Path, simulate: Simulate) -> None:
    """Requests come with their KV entries, and not all of them find room at once."""
    small = {"kv_cache": {"num_blocks": 20}}
    served(crowd, simulate, {"policy": "vllm"}, pool | small, {"gb_per_s": 100})
