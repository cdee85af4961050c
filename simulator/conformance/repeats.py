"""Batches that stand for the steps to come as well: the suite asks in every one of them whether they still hold.

After a batch that "holds" a scheduler may run all decodes without asking the policy: until a request finishes, or only
until one arrives, and as long as one block is left over after the step. Here nothing is skipped: the watch hands on an
ordinary batch, so that `plan` is called in each step, and compares.
"""

from simulator.core import Batch, Request, View
from simulator.errors import PolicyError


class Repeats:
    """The promise of the last batch that held."""

    def __init__(self) -> None:
        self._until = Batch.ONCE
        self._waiting: list[object] = []
        self._running = (0, 0)
        self._prompts: list[Request] = []

    def ordinary(self, batch: Batch | None, view: View) -> Batch | None:
        """`batch` as one that holds for one step. Raises PolicyError if an earlier one promised another."""
        if self._still_holds(view) and not _all_decodes(batch):
            until = "finishes" if self._until == Batch.UNTIL_FINISH else "arrives"
            raise PolicyError(
                f"said that every decode would go on until a request {until}, and then planned something else"
            )
        if batch is None or batch.holds == Batch.ONCE:
            if not self._still_holds(view):
                self._until = Batch.ONCE
            return batch
        admitted = {request for request, _ in batch.chunks if request.state == Request.WAITING}
        self._prompts = [request for request, _ in batch.chunks]
        self._waiting = [request for request in view.waiting if request not in admitted]
        self._until = batch.holds
        self._running = (len(view.running) + len(admitted), view.decoding)
        return batch.unpromised()

    def _still_holds(self, view: View) -> bool:
        if self._until == Batch.ONCE or not view.decoding or view.free_blocks <= view.decode_blocks:
            return False
        if list(view.waiting) != self._waiting:
            return False
        if self._until == Batch.UNTIL_ARRIVAL:
            return True
        completed = sum(request.state != Request.PREFILLING for request in self._prompts)
        return (len(view.running), view.decoding - completed) == self._running


def _all_decodes(batch: Batch | None) -> bool:
    if batch is None or batch.decodes is not None:
        return False
    return not (batch.chunks or batch.preempted or batch.rejected or batch.in_vain)
