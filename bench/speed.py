"""How fast the simulator is, in CPU time: machines are shared, and wall time measures the neighbours too.

    python bench/speed.py requests [10000 100000 ...]   # whole processes, by the number of requests
    python bench/speed.py batch [10 85 ...]             # the simulation alone, by how many decode at once
    python bench/speed.py phases [100000]               # where the time of one run goes

Requests have conversation-like lengths (lognormal, mean about 1150 + 210 tokens) and arrive 12 a second. For `batch`
they wait from the start, so that always as many run as may: with outputs of about 200 tokens, where requests come
and go all the time, of 1,000, and of 8,000, where nearly all is decoding. Prints Markdown.
"""

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from simulator.clients import requests_of
from simulator.engine import simulate
from simulator.experiment import Experiment
from simulator.experiment_keys import resolve_experiment
from simulator.metrics.summary import policy_result
from simulator.output import write_run
from simulator.runner import load_trace

SEED = 7


def conversations(count: int, rate: float) -> str:
    """A trace of `count` requests, `rate` a second."""
    random = np.random.default_rng(SEED)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    prompts = np.exp(random.normal(6.65, 0.9, count)).clip(4, 8000).astype(int)
    outputs = np.exp(random.normal(4.9, 0.95, count)).clip(1, 2000).astype(int)
    rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return "".join(f"{arrival:.6f},{prompt},{output}\n" for arrival, prompt, output in rows)


def crowd(count: int, output: int) -> str:
    """A trace of `count` requests that all wait from the start, outputs spread evenly about `output` tokens."""
    outputs = np.random.default_rng(SEED).integers(output // 2, output * 3 // 2, count)
    return "".join(f"0,128,{tokens}\n" for tokens in outputs.tolist())


def experiment_keys(folder: Path, rows: str, sequences: int, num_blocks: int = 56057) -> dict[str, Any]:
    """The keys of an experiment: a trace of these rows under vLLM's scheduler."""
    trace = folder / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    policy = {"policy": "vllm", "max_num_batched_tokens": 2048, "max_num_seqs": sequences}
    return {
        "trace": str(trace),
        "costs": "h200/llama-3.1-8b",
        "kv_cache": {"num_blocks": num_blocks},
        "policies": [policy],
    }


def by_requests(counts: list[int]) -> None:
    """CPU seconds of whole processes."""
    _header("requests", "iterations", "CPU s", "requests/s", "iterations/s", "peak MB")
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "e.yaml").write_text(json.dumps(experiment_keys(folder, conversations(count, 12), 256)))
            command = "from simulator.cli import main; main()"
            arguments = [str(folder / "e.yaml"), "--out", str(folder / "out"), "--no-plots", "--no-report", "--quiet"]
            process = subprocess.Popen([sys.executable, "-c", command, *arguments])
            _, status, used = os.wait4(process.pid, 0)
            assert status == 0
            header, values = (folder / "out" / "summary.csv").read_text().splitlines()
            row = dict(zip(header.split(","), values.split(","), strict=True))
            assert int(row["num_finished"]) == count
        cpu, iterations = used.ru_utime + used.ru_stime, int(row["iterations"])
        peak = used.ru_maxrss / 1024
        print(
            f"| {count:,} | {iterations:,} | {cpu:.2f} | {count / cpu:,.0f} | {iterations / cpu:,.0f} | {peak:.0f} |",
            flush=True,
        )


def _header(*names: str) -> None:
    print(f"| {' | '.join(names)} |\n|{' ---: |' * len(names)}")


def by_batch(sizes: list[int]) -> None:
    """CPU seconds of the simulation alone."""
    _header("running", "output tokens", "iterations", "iterations/CPU s", "µs a request")
    for size in sizes:
        for output in (200, 1000, 8000):
            count = max(4 * size, 4_000_000 // output)
            with tempfile.TemporaryDirectory() as name:
                keys = experiment_keys(Path(name), crowd(count, output), size, num_blocks=size * 1000)
                experiment = resolve_experiment(keys)
                cpu, iterations = _simulate(experiment)
            print(
                f"| {size} | {output} | {iterations:,} | {iterations / cpu:,.0f} | {1e6 * cpu / count:.0f} |",
                flush=True,
            )


def _simulate(experiment: Experiment) -> tuple[float, int]:
    """(CPU seconds, iterations) of the only policy of an experiment."""
    run = experiment.policies[0]
    trace, policy = load_trace(experiment), experiment.make_policy(run)
    times = experiment.make_times(experiment.make_costs(), policy, run)
    gc.collect()
    gc.disable()
    began = time.process_time()
    log = simulate(requests_of(trace), policy, times, block_size=16, num_blocks=experiment.num_blocks)
    cpu = time.process_time() - began
    gc.enable()
    return cpu, len(log.iterations)


def phases(count: int) -> None:
    """CPU seconds of each part of one run."""
    began = time.process_time()  # of the process: imports are in it
    print(f"| part, {count:,} requests | CPU s |\n| --- | ---: |\n| start and imports | {began:.2f} |")

    def mark(what: str) -> None:
        nonlocal began
        now = time.process_time()
        print(f"| {what} | {now - began:.2f} |", flush=True)
        began = now

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = experiment_keys(folder, conversations(count, 12), 256)
        began = time.process_time()
        experiment = resolve_experiment(keys)
        run = experiment.policies[0]
        policy = experiment.make_policy(run)
        times = experiment.make_times(experiment.make_costs(), policy, run)
        mark("experiment and cost table")
        trace = load_trace(experiment)
        mark("trace")
        gc.disable()
        log = simulate(requests_of(trace), policy, times, block_size=16, num_blocks=experiment.num_blocks)
        mark("simulation")
        gc.enable()
        result = policy_result("vllm", "vllm", {}, trace, log)
        mark("metrics")
        write_run(folder, result)
        mark("requests.csv and iterations")
    print(f"| peak memory, MB | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} |")


def main(what: str, *numbers: str) -> None:
    """Run one of the measurements."""
    given = [int(number) for number in numbers]
    if what == "requests":
        by_requests(given or [1_000, 10_000, 100_000, 1_000_000])
    elif what == "batch":
        by_batch(given or [10, 85, 256, 1000])
    elif what == "phases":
        phases(*(given or [100_000]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["help"]))
