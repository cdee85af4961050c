"""What a single batch must look like, beyond what the scheduler refuses by itself, and what a policy has promised."""

from dataclasses import dataclass

from simulator.conformance.snapshot import decision, in_words
from simulator.core import Batch, Request, View
from simulator.errors import PolicyError
from simulator.promises import Promises


@dataclass
class Reached:
    """What the batches seen so far reached: a promise that was never put to the test proves nothing."""

    steps: int = 0
    preemptions: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    prefills: int = 0
    running: int = 0

    def note(self, batch: Batch, view: View) -> None:
        """Take `batch` into account, before it is applied."""
        preempted = set(batch.preempted)
        if batch.decodes is None:
            decoding = sum(request not in preempted for request in view.decoding_requests())
        else:
            decoding = len(batch.decodes)
        self.steps += 1
        self.preemptions += len(batch.preempted)
        prefill_tokens = sum(tokens for _, tokens in batch.chunks)
        admitted = sum(request.state == Request.WAITING for request, _ in batch.chunks)
        self.tokens = max(self.tokens, decoding + prefill_tokens)
        self.prefill_tokens = max(self.prefill_tokens, prefill_tokens)
        self.prefills = max(self.prefills, len(batch.chunks))
        self.running = max(self.running, len(view.running) + admitted - len(batch.preempted))

    def include(self, other: "Reached") -> None:
        """Add the counts of another run, keep the larger peaks."""
        self.steps += other.steps
        self.preemptions += other.preemptions
        self.tokens = max(self.tokens, other.tokens)
        self.prefill_tokens = max(self.prefill_tokens, other.prefill_tokens)
        self.prefills = max(self.prefills, other.prefills)
        self.running = max(self.running, other.running)

    def limits(self, promises: Promises) -> list[tuple[str, int | None, int, str]]:
        """Each limit: promise, value, what was reached, of what."""
        return [
            ("token_budget", promises.token_budget, self.tokens, "tokens in a step"),
            ("prefill_budget", promises.prefill_budget, self.prefill_tokens, "prompt tokens in a step"),
            ("max_prefills", promises.max_prefills, self.prefills, "prompt chunks in a step"),
            ("sequence_limit", promises.sequence_limit, self.running, "running requests"),
        ]


def check_batch(batch: Batch) -> None:
    """Raises PolicyError for what the scheduler would not notice."""
    if batch.decodes is not None and len(set(batch.decodes)) < len(batch.decodes):
        raise PolicyError(f"plan names a request twice in `decodes`: {in_words(decision(batch))}")
    for request, tokens in batch.chunks:
        if type(tokens) is not int:
            raise PolicyError(f"plan gave {request!r} {tokens!r} tokens, a {type(tokens).__name__}; it must be an int")
    for request, _ in batch.undone:
        if request not in batch.preempted:
            raise PolicyError(f"plan names {request!r} in `undone`, but does not preempt it")


def check_promises(promises: Promises, batch: Batch | None, reached: Reached, view: View) -> None:
    """Raises PolicyError if `batch` breaks a promise about single steps; `reached` has taken it into account."""
    if batch is None:
        if promises.work_conserving:
            _check_idling(view)
        return
    for promise, limit, count, what in reached.limits(promises):
        if limit is not None and count > limit:
            raise PolicyError(f"planned {count} {what}; it promises {promise} {limit}")
    if promises.never_preempts and batch.preempted:
        raise PolicyError(f"preempted {batch.preempted[0]!r}; it promises never_preempts")


def _check_idling(view: View) -> None:
    for request in view.running:
        if request.state in (Request.PREFILLING, Request.DECODING):
            raise PolicyError(f"scheduled nothing although {request!r} could run; it promises work_conserving")
    if view.waiting and not view.running:
        first = next(iter(view.waiting))
        raise PolicyError(f"scheduled nothing although only {first!r} and others wait; it promises work_conserving")
