"""A step log with all that a profile is fitted by: the costs of its model, the engine's limits, what clients saw."""

import json
from dataclasses import dataclass
from pathlib import Path

from simulator.cost_table import CostTable
from simulator.engines.latency import ClientTimes, read_client_times
from simulator.engines.profile import EngineProfile
from simulator.errors import InputError
from simulator.exchanges import exchanges_of
from simulator.models import model_names
from simulator.network import network_of
from simulator.step_log_file import LoggedSteps, read_step_log
from simulator.table_costs import TableCosts

OVERLAPPING = "steps of pipeline stages overlap, so no host time can be told from them; log one stage"


@dataclass(frozen=True)
class Recording:
    """A step log with the costs of its model on its GPU; the engine's `max_num_seqs` and what clients saw, if known.

    Of a table of one of several ranks, these exchange by the `network` of that name, or the usual one of the GPU.
    """

    name: str
    log: LoggedSteps
    table: CostTable
    max_num_seqs: int | None = None
    clients: ClientTimes | None = None
    network: str | None = None

    def costs(self, profile: EngineProfile) -> TableCosts:
        """With what ranks exchange under the engine of `profile`."""
        network = network_of(self.network, self.table.metadata.gpu.name)
        return TableCosts(self.table, exchanges_of(self.table, network, profile.all_reduce_saves_us))


def read_recording(
    path: Path,
    table: CostTable,
    max_num_seqs: int | None = None,
    requests: Path | None = None,
    network: str | None = None,
) -> Recording:
    """The recording in a step log, or in a folder with `steps.csv.gz` and, if there, `requests.csv` and `run.json`.

    `network` is what joins the ranks, if `table` is of one of several.
    """
    steps, name = path, path.name
    if path.is_dir():
        steps, name = path / "steps.csv.gz", path.resolve().name
        if not steps.is_file():
            raise InputError("no steps.csv.gz in this folder", path=path)
        if requests is None and (path / "requests.csv").is_file():
            requests = path / "requests.csv"
        if (path / "run.json").is_file():
            limit = _limit_of(path / "run.json", table)
            max_num_seqs = limit if max_num_seqs is None else max_num_seqs
    clients = None if requests is None else read_client_times(requests)
    return Recording(name, read_step_log(steps), table, max_num_seqs, clients, network)


def _limit_of(path: Path, table: CostTable) -> int | None:
    """`max_num_seqs` of a `run.json`. InputError where its model is one that is known here, and not the table's, where
    it ran on another number of ranks, and where it had pipeline stages."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"not readable as JSON: {' '.join(str(error).split())}", path=path) from None
    if not isinstance(about, dict):
        raise InputError("should be a JSON object", path=path)
    model, limit = about.get("model"), about.get("max_num_seqs")
    if model in model_names() and model != table.metadata.model.name:
        raise InputError(f"a run of {model}, but {table.name} has the costs of {table.metadata.model.name}", path=path)
    ranks, stages = about.get("tensor", 1), about.get("pipeline", 1)
    if ranks != table.metadata.tensor_parallel:
        problem = f"ran on {ranks} tensor-parallel GPUs, {table.name} is of {table.metadata.tensor_parallel}"
        raise InputError(problem, path=path, key="tensor")
    if stages != 1:
        raise InputError(f"ran on {stages} stages; {OVERLAPPING}", path=path, key="pipeline")
    return limit if isinstance(limit, int) and limit > 0 else None
