"""One measured run repeated by simulation, and everything that the validation says about the pair."""

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from simulator.compare.comparison import Comparison, compare
from simulator.compare.measured_experiment import measured_experiment
from simulator.compare.overlap import Overlap, overlap_of
from simulator.compare.prices import find_price
from simulator.compare.readers import read_run
from simulator.compare.run import Run
from simulator.compare.steps import kinds
from simulator.engines.calibrate import MODES, Residuals, fitted_blocks, residuals_of
from simulator.engines.fit_line import FitLog, Mask
from simulator.engines.logged import price_log
from simulator.engines.profile import Mode
from simulator.errors import InputError
from simulator.experiment import Experiment, as_yaml_keys
from simulator.output import write_experiment, write_run, write_summary
from simulator.pipeline.hosted import HostedPipelineTimes
from simulator.results import PolicyResult
from simulator.runner import load_trace, run_policy
from simulator.step_log_file import read_step_log
from simulator.table_costs import TableCosts
from simulator.trace import Floats, Ints

PARTS = ("fitted", "held out", "all")


@dataclass(frozen=True)
class StepErrors:
    """Errors of the predicted times of a run's logged steps, by part of the run and kind of step."""

    part: str
    errors: Residuals


@dataclass(frozen=True)
class GapShares:
    """Per cent of the gaps between tokens that end with a step of a kind, by the first three of KINDS."""

    measured: Floats
    simulated: Floats


@dataclass(frozen=True)
class ValidatedRun:
    """A measured run beside its simulation. `steps` is empty and `gaps` None without a step log; of a pipeline, whose
    steps overlap, there is an `overlap` instead of `steps`.

    `fit` says what the mode of the engine profile was fitted to, `steps` have parts where this run is among that.
    """

    name: str
    experiment: Experiment
    mode: str
    fit: str
    comparison: Comparison
    steps: tuple[StepErrors, ...]
    gaps: GapShares | None
    overlap: Overlap | None = None

    @property
    def gpus(self) -> int:
        """How many the engine ran on."""
        return self.experiment.parallel.tensor * self.experiment.parallel.pipeline

    @property
    def measured(self) -> Run:
        """The reference."""
        return self.comparison.reference

    @property
    def simulated(self) -> Run:
        """The simulation."""
        return self.comparison.other


def validate_run(folder: Path, *, costs: str | None, engine: str, held_out: float) -> ValidatedRun:
    """Simulate the run in `folder` and compare. Raises InputError for what cannot be repeated."""
    experiment = measured_experiment(folder, costs, engine)
    [run] = experiment.policies
    measured = read_run(str(folder))
    result = run_policy(experiment, run, load_trace(experiment))
    comparison = _compared(experiment, result, measured)
    ahead = experiment.make_policy(run).steps_in_flight > 1
    profile = experiment.engine_profile
    if profile is None:
        raise InputError("steps without an engine are not those of a real one; name a profile", key="--engine")
    mode = profile.mode(2 if ahead else 1)
    return ValidatedRun(
        name=measured.name,
        experiment=experiment,
        mode=MODES[ahead],
        fit=mode.fit,
        comparison=comparison,
        steps=() if comparison.steps is None else _step_errors(measured, experiment, MODES[ahead], mode, held_out),
        gaps=_gap_shares(measured, result),
        overlap=_overlap(measured, experiment, result, mode),
    )


def _compared(experiment: Experiment, result: PolicyResult, measured: Run) -> Comparison:
    """By way of an output folder, so that figures are those that `compare-runs` would give."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "simulated")
        folder.mkdir()
        write_run(folder, result)
        write_summary(folder, [result])
        write_experiment(folder, as_yaml_keys(experiment))
        simulated = read_run(str(folder))
        comparison = compare(measured, simulated, find_price((measured, simulated)))
    if comparison.warnings:
        raise InputError("; ".join(comparison.warnings), path=measured.path)
    return comparison


def _step_errors(
    measured: Run, experiment: Experiment, mode_name: str, mode: Mode, held_out: float
) -> tuple[StepErrors, ...]:
    assert measured.step_log is not None
    assert experiment.engine_profile is not None
    log, costs = read_step_log(measured.step_log), experiment.make_costs()
    assert isinstance(costs, TableCosts)
    captured = experiment.engine_profile.cuda_graphs.captured(experiment.policies[0].options["max_num_seqs"])
    priced = price_log(log, costs, captured, costs.heat(), workers=experiment.parallel.tensor > 1)

    def errors(used: Mask) -> list[Residuals]:
        fit_log = FitLog(priced, experiment.model.num_hidden_layers, used)
        return residuals_of(measured.name, mode_name, fit_log, mode)

    found = [StepErrors("all", row) for row in errors(np.ones(len(log), dtype=np.bool_))]
    if is_named(measured.name, mode.fit):
        halves = errors(fitted_blocks(len(log), held_out))
        found = [*(StepErrors(PARTS[0] if row.fitted else PARTS[1], row) for row in halves), *found]
    return tuple(found)


def _overlap(measured: Run, experiment: Experiment, result: PolicyResult, mode: Mode) -> Overlap | None:
    if measured.step_log is None or experiment.parallel.pipeline == 1:
        return None
    [run] = experiment.policies
    policy = experiment.make_policy(run)
    times = experiment.make_times(experiment.make_costs(), policy, run)
    assert isinstance(times, HostedPipelineTimes)
    in_flight = policy.steps_in_flight > 1
    return overlap_of(read_step_log(measured.step_log), times, result, mode, in_flight=in_flight)


def is_named(name: str, fit: str) -> bool:
    """Whether a mode was fitted to the run of that name."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", " ".join(fit.split())) is not None


def _gap_shares(measured: Run, result: PolicyResult) -> GapShares | None:
    """A step ends a gap of each of its decodes."""
    if measured.step_log is None:
        return None
    log, rows = read_step_log(measured.step_log), result.iterations
    simulated = kinds(rows["num_decodes"], rows["num_prefills"], rows["decode_tokens"] + rows["prefill_tokens"])
    return GapShares(
        _shares(kinds(log.decodes, log.num_chunks, log.tokens), log.decodes), _shares(simulated, rows["num_decodes"])
    )


def _shares(kind: Ints, decodes: Ints) -> Floats:
    counts = np.bincount(kind[kind >= 0], decodes[kind >= 0], minlength=3)[:3]
    return np.asarray(100 * counts / max(1.0, counts.sum()))
