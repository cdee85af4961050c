"""The conformance suite lets the bundled policies pass, with any options, and catches every broken one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from policies.vllm import Vllm
from simulator.conformance import Case, ConformanceError, check_case, check_policy
from simulator.conformance.__main__ import check
from simulator.core import DECODES_ONLY, DECODES_UNTIL_ARRIVAL, DECODES_UNTIL_FINISH, Batch, View
from simulator.errors import InputError, run_command
from simulator.plugins import make_policy, policy_names
from simulator.policy import PolicyBase, Surroundings
from simulator.promises import Promises
from tests.house.paths import outside
from tests.simulator.broken_policies import EVIL, Careless, ShortestFirst, Sound

H200 = Surroundings("NVIDIA H200", 141 * 2**30, 131072)
CHUNKED = {"enable_chunked_context": True, "chunk_unit_size": 4, "context_chunking_policy": "EQUAL_PROGRESS"}
VARIATIONS: dict[str, list[dict[str, Any]]] = {
    "orca": [
        {"max_batch_size": 3},
        {"max_batch_size": 4, "max_prefills_per_batch": 1},
        {"reservation": "max_model_len", "max_model_len": 60},
    ],
    "sarathi": [
        {"chunk_size": 8, "max_num_seqs": 4, "tile_size": 4},
        {"chunk_size": 16, "max_num_seqs": 5, "tile_size": 0, "max_prefills_per_batch": 0},
        {"chunk_size": 3, "max_num_seqs": 8, "tile_size": 0, "max_prefills_per_batch": 2},
    ],
    "simple-chunking": [{"chunk_size": 8, "max_num_seqs": 4}, {"chunk_size": 3, "max_num_seqs": 8}],
    "static": [
        {"max_batch_size": 3, "max_model_len": 100},
        {"max_batch_size": 1, "max_model_len": 60},
        {"max_batch_size": 4, "max_model_len": 90, "padding": True},
    ],
    "tensorrt-llm": [
        {"max_batch_size": 3, "max_num_tokens": 40},
        {"max_batch_size": 4, "max_num_tokens": 20, "enable_chunked_context": True, "tokens_per_block": 4},
        {"capacity_scheduler_policy": "STATIC_BATCH", "max_batch_size": 4, "max_num_tokens": 48, "max_seq_len": 70},
        {"capacity_scheduler_policy": "STATIC_BATCH", "max_batch_size": 4, "max_num_tokens": 16} | CHUNKED,
        {"capacity_scheduler_policy": "MAX_UTILIZATION", "max_batch_size": 5, "max_num_tokens": 64},
        {"capacity_scheduler_policy": "MAX_UTILIZATION", "max_batch_size": 5, "max_num_tokens": 9} | CHUNKED,
        {"max_batch_size": 6, "max_num_requests": 3, "max_num_active_requests": 4, "max_num_tokens": 12} | CHUNKED,
    ],
    "tgi": [
        {"prefill_chunking": False, "max_batch_size": 4, "waiting_served_ratio": 1.2, "max_waiting_tokens": 3},
        {"prefill_chunking": False, "max_batch_prefill_tokens": 40, "max_waiting_tokens": 0, "prefix_caching": False},
        {"prefill_chunking": False, "waiting_served_ratio": 3.0, "max_waiting_tokens": 1000, "max_new_tokens": 20},
        {"max_batch_prefill_tokens": 16},
        {"max_batch_prefill_tokens": 1, "max_batch_total_tokens": 200},
        {"max_batch_prefill_tokens": 8, "max_concurrent_requests": 4},
    ],
    "vllm-v0": [
        {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 80},
        {"max_num_batched_tokens": 50, "max_num_seqs": 6, "max_model_len": 200},
        {"enable_chunked_prefill": True},
        {"enable_chunked_prefill": True, "max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"enable_chunked_prefill": True, "max_num_batched_tokens": 6, "max_num_seqs": 6, "max_model_len": 100},
    ],
    "vllm": [
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"max_num_batched_tokens": 16, "max_num_seqs": 4, "scheduling_policy": "priority"},
        {"max_num_batched_tokens": 5, "max_num_seqs": 5, "scheduler_reserve_full_isl": False},
        {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 64, "enable_chunked_prefill": False},
        {"max_num_batched_tokens": 48, "max_num_seqs": 8, "enable_prefix_caching": False, "async_scheduling": False},
        {"max_num_batched_tokens": 32, "max_num_seqs": 8, "long_prefill_token_threshold": 7},
    ],
}
ALL = [(name, options) for name in policy_names() for options in ({}, *VARIATIONS.get(name, ()))]


@pytest.mark.parametrize(("name", "options"), ALL, ids=lambda value: value if isinstance(value, str) else "")
def test_bundled_policies_conform(name: str, options: dict[str, Any]) -> None:
    """Each bundled policy, with its defaults and with small limits, one step in flight and two."""
    policy = make_policy(name, options, H200)
    assert isinstance(policy, PolicyBase)
    passed = check_policy(policy, cases=48, steps_in_flight=(1, 2))
    assert passed.reached.steps > 500


def test_a_sound_policy_conforms() -> None:
    """The policy that the broken ones are made from, to its limits."""
    assert check_policy(Sound(), steps_in_flight=(1, 2)).untested == []


@pytest.mark.parametrize("kind", EVIL, ids=lambda kind: kind.__name__)
def test_broken_policy_is_caught(kind: type[Sound]) -> None:
    """Each is told what is wrong, in a sentence that begins with its name."""
    with pytest.raises(ConformanceError, match=rf"^{kind.__name__} .*{EVIL[kind]}"):
        check_policy(kind())


def test_only_promises_are_held_against_a_policy() -> None:
    """Shortest first starves, which is no fault unless it promises not to; promises may be given by the caller."""
    check_policy(ShortestFirst(), promises=Promises(), cases=20)
    check_policy(Careless(), cases=20)
    with pytest.raises(ConformanceError, match="planned 9 tokens in a step; it promises token_budget 8"):
        check_policy(Careless(token_budget=9), promises=Promises(token_budget=8))


def test_the_case_repeats_the_problem() -> None:
    """What a failure names is enough to fail again, with as few requests as will do."""
    kind = next(kind for kind in EVIL if kind.__name__ == "OneTooMany")
    with pytest.raises(ConformanceError) as caught:
        check_policy(kind(), seed=3)
    case = caught.value.case
    assert case is not None
    assert len(case.requests) == 5
    assert str(case) in str(caught.value)
    with pytest.raises(ConformanceError, match="planned 5 running requests"):
        check_case(kind(), case)


def test_seeds_give_the_same_cases_again() -> None:
    """The same seed, the same steps; another seed, others."""
    first, again, other = (check_policy(Sound(), cases=20, seed=seed).reached for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_untested_limits_are_told() -> None:
    """A limit that is too large for small workloads is not passed over in silence."""
    [sequences] = check_policy(Vllm(), cases=40).untested
    assert sequences.startswith("sequence_limit 1024 was not reached, there were at most ")


class Holds(Sound):
    """Says that its decodes hold until the next arrival, also while somebody waits."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        return DECODES_UNTIL_ARRIVAL if batch is DECODES_ONLY else batch


class HoldsRightly(Sound):
    """The same, while nobody waits; then only until a request finishes."""

    def plan(self, view: View) -> Batch | None:
        batch = super().plan(view)
        if batch is not DECODES_ONLY:
            return batch
        return DECODES_UNTIL_FINISH if view.waiting else DECODES_UNTIL_ARRIVAL


def test_a_batch_that_holds_is_asked_for_again() -> None:
    """Its promise is checked in every step it spans."""
    check_policy(HoldsRightly(), steps_in_flight=(1, 2))
    with pytest.raises(ConformanceError, match=r"said that every decode would go on until a request arrives, and then"):
        check_policy(Holds())


class Trades(Careless):
    """Caches prefixes, and preempts the last of two decodes for whoever waits, in one step."""

    @property
    def caches_prefixes(self) -> bool:
        return True

    def reserve_tokens(self, _: object) -> int:
        return 0

    def plan(self, view: View) -> Batch | None:
        if not view.waiting:
            return DECODES_ONLY if view.decoding else None
        first = next(iter(view.waiting))
        assert view.prefixes is not None
        chunk = (first, first.known - len(view.prefixes.lookup(first)) * view.block_size)
        return Batch([chunk], preempted=view.decoding_requests()[1:])


def test_trading_places_with_cached_prefixes() -> None:
    """A step may preempt and admit at once: blocks with identities stay where they belong."""
    requests = ((0, 8, 8, 0, 1), (1, 8, 8, 0, 2), (2, 8, 8, 0, 1), (3, 9, 8, 0, 1))
    reached = check_case(Trades(), Case(block_size=4, num_blocks=60, requests=requests))
    assert reached.preemptions > 5


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundled policy or the user's; it says what was run, and which limits were not reached."""
    monkeypatch.chdir(tmp_path)
    options = ["vllm", "--set", "max_num_batched_tokens=16", "--set", "max_num_seqs=4", "--cases", "30"]
    told = CliRunner().invoke(check, options, catch_exceptions=False).output
    assert told.startswith("vllm conforms: 30 cases, ")
    assert "note" not in told
    assert "note: sequence_limit 64" in CliRunner().invoke(check, ["orca", "--cases", "3"]).output
    with pytest.raises(InputError, match="max_num_sequences"):
        CliRunner().invoke(check, ["vllm", "--set", "max_num_sequences=4"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["broken_policies:Sound", "--cases", "3"], 0, ""),
        (["broken_policies:ChangesTheView"], 1, "conformance: ChangesTheView plan changed `view.free_blocks`"),
        (["broken_policies:Sund"], 2, 'did you mean "Sound"?'),
        (["broken_policies:Sound", "--set", "max_num_seqs=many"], 2, "max_num_seqs: "),
    ],
)
def test_exit_status(
    arguments: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0, 1 and 2 as everywhere, without a traceback."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    with pytest.raises(SystemExit) as left:
        run_command(check, "conformance")
    assert left.value.code == status
    assert message in capsys.readouterr().err


def test_no_test_library_is_imported() -> None:
    """The suite ships with the package, whose users need not have pytest."""
    listed = "import simulator.conformance, sys; print({'pytest', 'hypothesis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True, env=outside())
    assert done.stdout.strip() == "set()"
