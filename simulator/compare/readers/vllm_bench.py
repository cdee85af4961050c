"""A result of `vllm bench serve --save-result`, with or without `--save-detailed` and `--append-result`.

Fields as written by vLLM 0.33.0 (vllm/benchmarks/serve.py). TTFT counts from the sending of the request, TPOT is
(latency - TTFT) / (output tokens - 1), ITL every gap between two chunks of every request, and percentiles are numpy's:
ours, as far as a chunk holds one token. `duration` begins before the first request is sent, so it is computed from
`start_times` where the file has them.
"""

from simulator.compare.readers._client import chosen_run
from simulator.compare.readers._given import Given
from simulator.compare.run import Run

NAME = "vllm bench serve"
DESCRIPTION = "--save-result, better with --save-detailed; of --append-result the last, or --index"
NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
FACTS = (
    *("backend", "endpoint_type", "label", "model_id", "date", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "failed"),
)


def recognises(given: Given) -> bool:
    """By keys of the object that SGLang's has not."""
    known = given.last_has("completed", "total_input_tokens", "request_throughput")
    return known and not given.last_has("total_output_tokens_retokenized") and not given.last_has("mean_e2e_latency_ms")


def read(given: Given) -> Run:
    """See `Reader.read`."""
    return chosen_run(given, NAME, NAMES, FACTS, "--save-detailed")
