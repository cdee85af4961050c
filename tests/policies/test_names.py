"""Policies by name: one file a policy with one class, its source, and the options that engines and papers name."""

import importlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import policies
from simulator.errors import InputError
from simulator.plugins import (
    experiment_files,
    make_policy,
    policy_class,
    policy_names,
    policy_options,
    setting_files,
    setting_names,
)
from simulator.policy import PolicyBase, Surroundings

GIB = 2**30
H200 = Surroundings("NVIDIA H200", 150754820096, 131072)
H100 = Surroundings("NVIDIA H100 80GB HBM3", 85520809984, 131072)
A100 = Surroundings("NVIDIA A100-SXM4-80GB", 85899345920, 131072)
A6000 = Surroundings("NVIDIA RTX A6000", 48 * GIB, 131072)
FILES = sorted(Path(policies.__file__).parent.glob("*.py"))
YAMLS = setting_files()

DEFAULTS: dict[str, dict[str, Any]] = {
    "orca": {
        "max_batch_size": 64,
        "reservation": "request",
        "max_model_len": 16384,
        "max_prefills_per_batch": 0,
    },
    "sarathi": {"chunk_size": 512, "max_num_seqs": 128, "tile_size": 128, "max_prefills_per_batch": 1},
    "sglang": {
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384,
        "max_running_requests": None,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "enable_mixed_chunk": False,
        "disable_radix_cache": False,
        "disable_overlap_schedule": False,
        "page_size": 1,
        "context_length": 131072,
        "max_new_tokens": None,
        "ignore_eos": True,
    },
    "simple-chunking": {"chunk_size": 512, "max_num_seqs": 128},
    "static": {"max_batch_size": 64, "max_model_len": 16384, "padding": False},
    "tensorrt-llm": {
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        "enable_chunked_context": False,
        "context_chunking_policy": "FIRST_COME_FIRST_SERVED",
        "chunk_unit_size": None,
        "max_batch_size": 2048,
        "max_num_tokens": 8192,
        "max_num_requests": None,
        "max_num_active_requests": None,
        "max_seq_len": 131072,
        "max_tokens": None,
        "tokens_per_block": 32,
    },
    "tgi": {
        "waiting_served_ratio": 0.3,
        "max_waiting_tokens": 20,
        "max_batch_prefill_tokens": 4096,
        "max_batch_total_tokens": None,
        "max_batch_size": None,
        "max_concurrent_requests": None,
        "prefill_chunking": True,
        "prefix_caching": True,
        "block_size": 1,
        "max_new_tokens": None,
        "speculate": 0,
    },
    "vllm": {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 1024,
        "long_prefill_token_threshold": 0,
        "enable_chunked_prefill": True,
        "scheduling_policy": "fcfs",
        "enable_prefix_caching": True,
        "scheduler_reserve_full_isl": True,
        "async_scheduling": True,
        "max_model_len": 131072,
    },
    "vllm-v0": {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 131072,
        "max_model_len": 131072,
        "enable_chunked_prefill": False,
    },
}


def options(name: str, where: Surroundings = H200, **given: Any) -> dict[str, Any]:
    """All options of a policy where only some are given."""
    policy = make_policy(name, given, where)
    return {field.name: getattr(policy, field.name) for field in fields(policy) if field.init}  # type: ignore[arg-type]


def refused(name: str, **given: Any) -> str:
    with pytest.raises(InputError) as caught:
        make_policy(name, given, H200)
    return str(caught.value)


@pytest.mark.parametrize("path", [path for path in FILES if not path.name.startswith("_")], ids=lambda path: path.stem)
def test_one_class_a_file(path: Path) -> None:
    """A policy's file defines one policy, a frozen dataclass with `plan` or `start`; other classes are its own."""
    module = importlib.import_module(f"policies.{path.stem}")
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    [policy] = [each for each in classes if issubclass(each, PolicyBase)]
    assert all(each is policy or each.__name__.startswith("_") for each in classes)
    assert is_dataclass(policy)
    assert policy.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert policy.plan is not PolicyBase.plan or policy.start is not PolicyBase.start


@pytest.mark.parametrize("path", [path for path in FILES if not path.name.startswith("_")], ids=lambda path: path.stem)
def test_cites_its_source(path: Path) -> None:
    """A policy's file says which paper or engine it follows."""
    documentation = importlib.import_module(f"policies.{path.stem}").__doc__ or ""
    assert re.search(r"OSDI|arXiv|SOSP|ASPLOS|version \d|FasterTransformer|commit [0-9a-f]{8}", documentation)


def test_names() -> None:
    """Every file is a name, and these are among them."""
    names = {path.stem.replace("_", "-") for path in FILES if not path.name.startswith("_")}
    assert names == set(policy_names())
    assert set(DEFAULTS) <= names


@pytest.mark.parametrize("name", DEFAULTS)
def test_options_and_defaults(name: str) -> None:
    """Options and their defaults on an H200."""
    assert options(name) == DEFAULTS[name]
    assert set(policy_options(policy_class(name))) == set(DEFAULTS[name])


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_ready_made_settings(path: Path) -> None:
    """Each YAML beside the policies is a policy with options that it has."""
    raw = yaml.safe_load(path.read_text())
    name = raw.pop("policy")
    assert raw.items() <= options(name, **raw).items()


def test_plain_yaml_is_the_default() -> None:
    """`NAME.yaml` says nothing else than the policy's defaults."""
    for path in YAMLS:
        raw = yaml.safe_load(path.read_text())
        name = raw.pop("policy")
        if path.stem == name:
            name = name.replace("_", "-")
            assert options(name, **raw) == DEFAULTS.get(name, options(name))


def test_all_policies_are_compared() -> None:
    """`all.yaml` runs every policy and every ready-made setting."""
    [path] = [path for path in experiment_files() if path.stem == "all"]
    entries = yaml.safe_load(path.read_text())["policies"]
    named = {entry if isinstance(entry, str) else entry["policy"] for entry in entries if "disaggregated" not in entry}
    assert named == {*policy_names(), *setting_names()}


def test_hyphens() -> None:
    """Names are written with hyphens or underscores."""
    for name in policy_names():
        assert policy_class(name) is policy_class(name.replace("-", "_"))


@pytest.mark.parametrize(
    ("where", "tokens", "sequences"), [(H200, 8192, 1024), (H100, 8192, 1024), (A100, 2048, 256), (A6000, 2048, 256)]
)
def test_vllm_defaults_by_gpu(where: Surroundings, tokens: int, sequences: int) -> None:
    """vLLM's API server: large budgets from 70 GiB on, an A100 excepted."""
    made = options("vllm", where)
    assert (made["max_num_batched_tokens"], made["max_num_seqs"]) == (tokens, sequences)


def test_vllm_sequences_within_the_budget() -> None:
    """With a small budget the default number of sequences is clipped to it."""
    assert options("vllm", max_num_batched_tokens=100)["max_num_seqs"] == 100
    assert options("vllm", max_num_batched_tokens=2048)["max_num_seqs"] == 1024


def test_vllm_budget_without_chunked_prefill() -> None:
    """Without chunked prefill the budget holds the longest prompt: the model's, or `max_model_len`."""
    assert options("vllm", enable_chunked_prefill=False)["max_num_batched_tokens"] == 131072
    made = options("vllm", enable_chunked_prefill=False, max_model_len=20000)
    assert made["max_num_batched_tokens"] == 20000
    made = options("vllm", enable_chunked_prefill=False, max_model_len=4000)
    assert made["max_num_batched_tokens"] == 8192


def test_vllm_length_is_the_models() -> None:
    """The longest sequence is the model's unless given."""
    assert options("vllm", Surroundings("NVIDIA H200", 141 * GIB, 4096))["max_model_len"] == 4096
    assert options("vllm", max_model_len=1000)["max_model_len"] == 1000


def test_vllm_v0_budget_is_the_longest_sequence() -> None:
    """Unless given, a step holds one prompt as long as the model's longest sequence, or `max_model_len`, or 2048."""
    assert options("vllm-v0", Surroundings("NVIDIA H200", 141 * GIB, 4096))["max_num_batched_tokens"] == 4096
    assert options("vllm-v0", max_model_len=3000)["max_num_batched_tokens"] == 3000
    assert options("vllm-v0", max_model_len=1000)["max_num_batched_tokens"] == 2048
    assert options("vllm-v0", max_num_batched_tokens=1024)["max_model_len"] == 131072


def test_vllm_v0_budget_of_chunks() -> None:
    """512 tokens, whatever the longest sequence."""
    made = options("vllm-v0", enable_chunked_prefill=True)
    assert (made["max_num_batched_tokens"], made["max_num_seqs"]) == (512, 256)
    assert (
        options("vllm-v0", enable_chunked_prefill=True, max_num_batched_tokens=2048)["max_num_batched_tokens"] == 2048
    )


def test_vllm_v0_budget_below_the_sequences() -> None:
    """With chunked prefill a budget below the number of sequences is refused, as vLLM does."""
    message = refused("vllm-v0", enable_chunked_prefill=True, max_num_batched_tokens=100)
    assert message == "with chunked prefill max_num_batched_tokens (100) must be at least max_num_seqs (256)"
    assert options("vllm-v0", max_num_batched_tokens=100)["max_num_seqs"] == 256


@pytest.mark.parametrize("given", [{"max_model_len": "long"}, {"max_model_len": 0}, {"enable_chunked_prefill": "yes"}])
def test_vllm_v0_wrong_value(given: dict[str, Any]) -> None:
    """Its defaults can be made of what is wrong, which is then named."""
    assert refused("vllm-v0", **given).startswith(f"{next(iter(given))}: ")


def test_tgi_budget_within_the_longest_sequence() -> None:
    """TGI's launcher takes no more prompt tokens at a time than the model has positions."""
    assert options("tgi", Surroundings("NVIDIA H200", 141 * GIB, 2048))["max_batch_prefill_tokens"] == 2048


def test_vllm_budget_below_the_sequences() -> None:
    """vLLM refuses a budget below the number of sequences, and so do we."""
    message = refused("vllm", max_num_batched_tokens=100, max_num_seqs=200)
    assert message == "max_num_batched_tokens (100) must be at least max_num_seqs (200)"


def test_vllm_budget_below_the_length() -> None:
    """Without chunked prefill a budget below the longest sequence is refused."""
    message = refused("vllm", max_num_batched_tokens=2048, enable_chunked_prefill=False)
    assert "without chunked prefill max_num_batched_tokens (2048) must be at least max_model_len (131072)" in message


@pytest.mark.parametrize(
    "given",
    [
        {"max_model_len": "long", "enable_chunked_prefill": False},
        {"max_model_len": 0},
        {"max_model_len": -5, "enable_chunked_prefill": False},
        {"max_num_batched_tokens": "many"},
        {"max_num_batched_tokens": 2048.5},
        {"max_num_batched_tokens": True},
        {"max_num_seqs": 0},
        {"enable_chunked_prefill": "no"},
        {"enable_chunked_prefill": 0},
        {"scheduling_policy": "lifo"},
        {"long_prefill_token_threshold": -1},
    ],
)
def test_wrong_value(given: dict[str, Any]) -> None:
    """A value of the wrong type or out of bounds is named with its key."""
    assert refused("vllm", **given).startswith(f"{next(iter(given))}: ")


def test_unknown_option() -> None:
    """A misspelt option is named, with the nearest and all others."""
    message = refused("sarathi", chunksize=512)
    assert message.startswith('chunksize: unknown key; did you mean "chunk_size"?')
    assert "tile_size" in message


@pytest.mark.parametrize(("wrong", "right"), [("vlm", "vllm"), ("Orca", "orca"), ("sarathy", "sarathi")])
def test_unknown_policy(wrong: str, right: str) -> None:
    """A misspelt name is answered with the nearest and all others."""
    message = refused(wrong)
    assert f'unknown policy "{wrong}"; did you mean "{right}"?' in message
    assert all(name in message for name in DEFAULTS)
