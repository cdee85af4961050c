"""A line of `python -m sglang.bench_serving --output-file`, with or without `--output-details`.

Fields as written by SGLang 0.5.23 (sglang/benchmark/serving.py). Definitions are those of `vllm bench serve`, with one
difference: with the native backend the gap before a chunk of several tokens is shared out evenly among them. The file
has no sending times; requests are in the order of the data set, which is that of sending.
"""

from dataclasses import replace

from simulator.compare.readers._client import chosen_run
from simulator.compare.readers._given import Given
from simulator.compare.run import Run

NAME = "SGLang bench_serving"
DESCRIPTION = "--output-file, better with --output-details; of several lines the last, or --index"
NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}
FACTS = ("backend", "dataset_name", "tag", "request_rate", "max_concurrency")


def recognises(given: Given) -> bool:
    """By keys of the object that vLLM's has not."""
    named = given.last_has("total_output_tokens_retokenized") or given.last_has("mean_e2e_latency_ms")
    return named and given.last_has("completed", "total_input_tokens", "request_throughput")


def read(given: Given) -> Run:
    """See `Reader.read`."""
    run = chosen_run(given, NAME, NAMES, FACTS, "--output-details")
    return replace(run, remarks={"itl": "a chunk's gap is shared out evenly among its tokens"})
