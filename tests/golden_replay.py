"""What the replays of all engines' recordings share: prices, the walk along the steps, and the fates of requests."""

from collections.abc import Callable, Iterable
from typing import Protocol

from simulator.costs import LinearCosts
from simulator.metrics.tokens import token_times_ns
from simulator.runlog import FINISHED, LoggedRun
from tests.golden_files import Record, Scenario, Verdict


class Run(Protocol):
    """A scenario on its way through the scheduler."""

    steps: int

    @property
    def over(self) -> bool:
        """Whether every request has arrived and ended."""
        ...

    def step(self) -> Record | None:
        """Run the next step; what happened, in the recorded form. None if nothing can run."""
        ...

    def summary(self, recorded: Record) -> Record:
        """The fate of every request in the recorded form. Ends the run."""
        ...


def costs_of(scenario: Scenario) -> LinearCosts:
    """The prices that the recorder took."""
    times = scenario.header["time_model"]
    return LinearCosts(times["a_ns"], times["b_ns_per_token"], times["c_ns_per_ctx_token"])


def follow(
    scenario: Scenario,
    run: Run,
    difference: Callable[[Record, Record], str | None],
    *,
    up_to: Callable[[Record], str | None] = lambda _: None,
    through: Callable[[Record], str | None] = lambda _: None,
) -> Verdict:
    """Compare every step and then the summary, up to the first difference.

    `up_to` and `through` say why a recorded step is the first that is not compared, or the last that is.
    """
    place = "step {} of " + str(len(scenario.steps))
    for number, recorded in enumerate(scenario.steps):
        if run.over:
            return Verdict(f"step {number}: recorded, but every request has ended", number)
        why = up_to(recorded)
        if why:
            return Verdict(f"ok up to {place.format(number)}, {why}", number, different=False)
        simulated = run.step()
        if simulated is None:
            return Verdict(f"step {number}: recorded, but nothing can run", number)
        wrong = difference(recorded, simulated)
        if wrong:
            return Verdict(f"step {number}: {wrong}", number + 1)
        why = through(recorded)
        if why:
            return Verdict(f"ok up to {why}, {place.format(number)}", number + 1, different=False)
    if not scenario.summary:
        return Verdict("the file ends before the summary", run.steps)
    wrong = difference(scenario.summary, run.summary(scenario.summary))
    return Verdict(f"summary: {wrong}" if wrong else "ok", run.steps, wrong is not None)


def every_difference(recorded: Record, simulated: Record) -> str | None:
    """The fields in which they differ, whoever has them, or None. Lists that are empty are not recorded."""
    return differences(recorded, simulated, (key for key in {**simulated, **recorded} if key != "kind"))


def differences(recorded: Record, simulated: Record, keys: Iterable[str]) -> str | None:
    """Those of `keys` in which they differ, with both values, or None."""
    both = ((key, recorded.get(key, []), simulated.get(key, [])) for key in keys)
    return "; ".join(f"{key}: recorded {was}, simulated {now}" for key, was, now in both if was != now) or None


def fates(run: LoggedRun, count: int, until_ns: float = float("inf")) -> Record:
    """What a summary says of all `count` requests, and of their tokens up to `until_ns`."""
    ended = dict(zip(run.requests["request"].tolist(), run.requests["status"].tolist(), strict=True))
    finished = [ended.get(index) == FINISHED for index in range(count)]
    times = [[time for time in of_request if time <= until_ns] for of_request in token_times_ns(run, count)]
    return {
        "num_finished": sum(finished),
        "total_out_tokens": sum(map(len, times)),
        "first_token_t": [min(of_request, default=None) for of_request in times],
        "finish_t": [max(t, default=None) if done else None for t, done in zip(times, finished, strict=True)],
        "out_tokens": [len(of_request) for of_request in times],
    }
