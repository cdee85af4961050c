"""Files of recorded decisions (format `golden-sched/1`): scenarios, the policy that each was recorded from, and the
token identities of prompts with common prefixes.

A file holds scenarios, one JSON object a line: a header with the engine's configuration, the requests, what each
`schedule()` call did, and a summary.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from policies.orca import Orca
from policies.sarathi import Sarathi
from policies.simple_chunking import SimpleChunking
from policies.static import Static
from policies.vllm import Vllm
from policies.vllm_v0 import VllmV0
from simulator.policy import Policy

Record = dict[str, Any]


@dataclass
class Scenario:
    """One run of a real scheduler; the summary is empty where the file ends before it."""

    header: Record
    requests: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    summary: Record = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.header['engine']} {self.header['name']}"

    @property
    def config(self) -> Record:
        config: Record = self.header["config"]
        return config


class Verdict(NamedTuple):
    """What a replay found, and after how many steps."""

    text: str
    steps: int
    different: bool = True


def scenarios(path: str) -> Iterator[Scenario]:
    """The scenarios of a file, in order."""
    scenario: Scenario | None = None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            kind = record.get("kind")
            if kind == "header":
                if scenario is not None:
                    yield scenario
                scenario = Scenario(record)
                continue
            if scenario is None:
                raise ValueError(f"{path}: no header before the first record")
            if kind == "requests":
                scenario.requests = record["requests"]
            elif kind == "summary":
                scenario.summary = record
            else:
                scenario.steps.append(record)
    if scenario is not None:
        yield scenario


def policy_of(scenario: Scenario) -> Policy | None:
    """The policy with the recorded configuration, or None where no policy covers it."""
    config = scenario.config
    if scenario.header["engine"] == "vllm":
        return _vllm(config)
    if scenario.header["engine"] == "sarathi-serve" and config["scheduler"] in SARATHI_SERVE:
        return SARATHI_SERVE[config["scheduler"]](config)
    return None


def _vllm(config: Record) -> Policy:
    return Vllm(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        scheduling_policy=config["policy"],
        enable_prefix_caching=config["enable_prefix_caching"],
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        async_scheduling=False,
        max_model_len=config["max_model_len"],
    )


SARATHI_SERVE: dict[str, Callable[[Record], Policy]] = {
    "sarathi": lambda c: Sarathi(c["chunk_size"], c["max_num_seqs"], tile_size=0, max_prefills_per_batch=0),
    "orca": lambda c: Orca(c["max_num_seqs"], "max_model_len", c["max_model_len"]),
    "faster_transformer": lambda c: Static(c["max_num_seqs"], c["max_model_len"]),
    "simple_chunking": lambda c: SimpleChunking(c["chunk_size"], c["max_num_seqs"]),
    "vllm": lambda c: VllmV0(c["max_num_seqs"], c["max_batched_tokens"], c["max_model_len"]),
}
"""Sarathi-Serve's schedulers by its own names."""


class Contents:
    """Keys of blocks from the recorded token identities: equal keys mean equal tokens up to the block's end."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._keys: dict[tuple[int, tuple[int, ...]], int] = {}

    def keys(self, record: Record) -> list[int]:
        """Keys of all full blocks of a request's prompt and output."""
        segments = record.get("seg", [[2**21 + record["id"], record["p"]]])
        tokens = [segment * 2**22 + place for segment, length in segments for place in range(length)]
        tokens += [(2**20 + record["id"]) * 2**22 + place for place in range(record["o"])]
        keys, parent = [], 0
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            block = (parent, tuple(tokens[start : start + self.block_size]))
            parent = self._keys.setdefault(block, len(self._keys) + 1)
            keys.append(parent)
        return keys
