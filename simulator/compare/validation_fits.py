"""What the engine profile was fitted to, for the page of a validation: a reader must know what the runs tell anew."""

from collections.abc import Iterator, Sequence

from simulator.compare.validated_run import PARTS, ValidatedRun, is_named
from simulator.compare.wording import wrapped
from simulator.engines.calibrate import MODES


def fits(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    """What the profile says of itself, and which of `runs` are in that."""
    engines = ", ".join(dict.fromkeys(f"`{run.experiment.engine}`" for run in runs))
    yield wrapped(
        "GPU times come from cost tables of single operators; nothing of these runs is in them. Host times come from"
        f" {engines}, one profile a mode for all runs, though hosts differ:"
    )
    yield ""
    for mode, fit in dict.fromkeys((run.mode, " ".join(run.fit.split())) for run in runs):
        yield wrapped(f"- {mode}: {fit or 'the profile does not say'}", "  ")
    for several, fit in dict.fromkeys(_besides(run) for run in runs if run.gpus > 1):
        yield wrapped(f"- {several}: {' '.join(fit.split()) or 'the profile does not say'}", "  ")
    yield ""
    yield wrapped(" ".join(_said(runs)))


def _besides(run: ValidatedRun) -> tuple[str, str]:
    """What the profile has for as many GPUs, and what that comes from."""
    profile = run.experiment.engine_profile
    assert profile is not None, "a run is validated with one"
    if run.experiment.parallel.pipeline > 1:
        return "stages of a pipeline", profile.mode(2 if run.mode == MODES[1] else 1).pipeline.fit
    return "ranks that share each layer", profile.fit


def _said(runs: Sequence[ValidatedRun]) -> Iterator[str]:
    fitted = [run.name for run in runs if any(row.part == PARTS[0] for row in run.steps)]
    rest = [run for run in runs if run.name not in fitted]
    partly = [run.name for run in rest if run.gpus > 1 and is_named(run.name, _besides(run)[1])]
    others = [run.name for run in rest if run.name not in partly]
    if fitted:
        whose = "these very runs" if len(fitted) == len(runs) else f"{len(fitted)} of these very runs"
        yield (
            f"So host times were fitted to part of the steps of {whose}, and the times of arrival and delivery to all"
            " of their requests. Of the figures above TTFT and E2E hold those two times; no figure of theirs was itself"
            " fitted to."
        )
    if partly:
        yield f"Of {' and '.join(partly)} comes what is named with them and nothing else."
    if others and (fitted or partly):
        yield f"Nothing was fitted to {', '.join(others)}."
    elif others:
        yield "None of the runs above is among them."
