"""What a policy promises beyond the rules that hold for all of them; `simulator.conformance` holds it to its word."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Promises:
    """Limits of every step, None = none promised, and what else can be relied on.

    `token_budget`: decodes and prompt tokens together. `prefill_budget`: prompt tokens. `max_prefills`: prompt chunks.
    `sequence_limit`: running requests after scheduling.
    `never_preempts`: nobody loses the memory that was given.
    `work_conserving`: None is returned only if nobody prefills or decodes, and nobody waits or somebody still runs.
    `starvation_free`: a request finishes although newer ones keep coming.
    `serves_all`: when no more requests come, each that fits the memory to its end finishes. Only a policy that sheds
    load promises less.
    """

    token_budget: int | None = None
    prefill_budget: int | None = None
    max_prefills: int | None = None
    sequence_limit: int | None = None
    never_preempts: bool = False
    work_conserving: bool = False
    starvation_free: bool = False
    serves_all: bool = True
