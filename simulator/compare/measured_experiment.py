"""The experiment that repeats a measured run: what the keys of its `run.json` say, with the trace beside it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from simulator.compare.readers._json import read_documents
from simulator.errors import InputError
from simulator.experiment import Experiment
from simulator.experiment_keys import resolve_experiment
from simulator.validation import parse

LABEL = "vllm"
GPU = "h200"
MAX_MODEL_LEN = 16384
ABOUT = ("trace", "engine", "gpu", "dtype", "attention", "cuda_graphs", "summary", "steps", "notes")
"""Keys of `run.json` that tell the reader something and the simulation nothing."""
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class RunKeys:
    """Keys of `run.json`: vLLM's settings under short names, `kv_blocks` as the engine reports them."""

    model: str
    mode: Literal["sync", "async"]
    budget: Count
    max_num_seqs: Count
    block: Count
    kv_blocks: Count
    enable_prefix_caching: bool
    lpt: Annotated[int, Ge(0)] = 0
    tensor: Count = 1
    pipeline: Count = 1


def measured_experiment(folder: Path, costs: str | None = None, engine: str = "vllm-0.23") -> Experiment:
    """The run in `folder` as an experiment of policy `vllm`, at `costs`, by default those of its model on an H200.

    Raises InputError for a folder without `run.json` or `trace.csv`, a key that is missing, unknown or wrong, and,
    where `costs` are not given, a run on another GPU.
    """
    for name in ("run.json", "trace.csv"):
        if not (folder / name).is_file():
            raise InputError(f"no {name} in this folder, so the run cannot be repeated", path=folder)
    path = folder / "run.json"
    said = read_documents(path)[0].content
    keys = parse(RunKeys, {key: value for key, value in said.items() if key not in ABOUT}, path=path)
    policy: dict[str, Any] = {
        "policy": "vllm", "label": LABEL, "max_num_batched_tokens": keys.budget, "max_num_seqs": keys.max_num_seqs,
        "long_prefill_token_threshold": keys.lpt, "enable_prefix_caching": keys.enable_prefix_caching,
        "async_scheduling": keys.mode == "async", "max_model_len": MAX_MODEL_LEN,
    }  # fmt: skip
    raw = {
        "trace": str((folder / "trace.csv").resolve()), "model": keys.model, "costs": costs or f"{GPU}/{keys.model}",
        "engine": engine, "kv_cache": {"block_size": keys.block, "num_blocks": keys.kv_blocks},
        "parallel": {"tensor": keys.tensor, "pipeline": keys.pipeline}, "policies": [policy],
    }  # fmt: skip
    try:
        experiment = resolve_experiment(raw)
    except InputError as error:
        raise InputError(str(error), path=path) from None
    _require_gpu(experiment, said.get("gpu"), costs, path)
    return experiment


def _require_gpu(experiment: Experiment, gpu: object, costs: str | None, path: Path) -> None:
    assert experiment.table is not None, "costs are the name of a table"
    priced = experiment.table.metadata.gpu.name
    if costs is None and isinstance(gpu, str) and priced.lower() not in gpu.lower():
        raise InputError(f'ran on "{gpu}", {experiment.table.name} is of {priced}; give --costs', path=path, key="gpu")
