"""Runs that the engine profile never saw: each simulated with host times fitted to other runs of its mode, on as many
GPUs, alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.compare.validated_run import ValidatedRun, validate_run
from simulator.engines.calibrate import calibrate, profile_keys
from simulator.engines.profile import EngineProfile, dump_profile, load_engine
from simulator.engines.recording import Recording, read_recording


def held_out_runs(
    folders: Sequence[Path], runs: Sequence[ValidatedRun], costs: str | None, engine: str
) -> list[ValidatedRun]:
    """`runs`, of `folders`, each simulated again. Left out are those alone in their mode and number of GPUs, those
    without a step log, and pipelines: the log of one does not tell the host times."""
    start = load_engine(engine)
    if start is None:
        return []
    recordings = {
        folder: _recording(folder, run)
        for folder, run in zip(folders, runs, strict=True)
        if run.measured.step_log is not None
        and run.experiment.table is not None
        and run.experiment.parallel.pipeline == 1
    }
    kind_of = {folder: (run.mode, run.gpus) for folder, run in zip(folders, runs, strict=True)}
    found = []
    for folder in recordings:
        others = [
            recording
            for other, recording in recordings.items()
            if other != folder and kind_of[other] == kind_of[folder]
        ]
        if others:
            found.append(_without(folder, others, start, costs))
    return found


def _recording(folder: Path, run: ValidatedRun) -> Recording:
    assert run.experiment.table is not None
    return read_recording(folder, run.experiment.table)


def _without(folder: Path, others: list[Recording], start: EngineProfile, costs: str | None) -> ValidatedRun:
    """The run in `folder` with a profile fitted to all steps of the others."""
    profile = calibrate(others, start, name=start.name, held_out=0.0).profile
    with TemporaryDirectory() as name:
        path = Path(name) / "others.yaml"
        path.write_text(dump_profile(profile_keys(profile)), encoding="utf-8")
        return replace(validate_run(folder, costs=costs, engine=str(path), held_out=0.0), steps=())
