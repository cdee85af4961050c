"""A line of `python -m sglang.bench_serving --output-file`, with or without `--output-details`.

Fields as written by SGLang 0.5.23 (sglang/benchmark/serving.py). Definitions are those of `vllm bench serve`, with one
difference: with the native backend the gap before a chunk of several tokens is shared out evenly among them. The file
has no sending times; requests are in the order of the data set, which is that of sending.
"""

from dataclasses import replace

from simulator.compare.readers._client import client_run, several
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
    several(given.documents, given.path)
    place, note = given.chosen(len(given.documents), "run")
    run = client_run(given.documents[place], given.path, given.name, NAME, NAMES, FACTS)
    if run.requests is None:
        run = replace(run, notes=(*run.notes, "no detail in the file (--output-details): aggregate figures only"))
    shared = {"itl": "a chunk's gap is shared out evenly among its tokens"}
    return replace(run, remarks={**run.remarks, **shared}, notes=(*([note] if note else []), *run.notes))
