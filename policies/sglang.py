"""SGLang's scheduler, as of version 0.5.23 (`srt/managers/scheduler.py` `get_next_batch_to_run`, `schedule_policy.py`
`PrefillAdder`, `schedule_batch.py` `retract_decode`).

Prompts come first: whatever prefill can be formed runs alone, up to `chunked_prefill_size` tokens with at most one
prompt left half done, and decodes wait (with `enable_mixed_chunk` they ride along). Admission counts on a share of what
running requests may still generate, the new-token ratio: it falls with every decode step, and rises again when the
memory was overestimated and requests had to be retracted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from policies._sglang_admission import LONGEST_OUTPUT
from policies._sglang_loop import SglangLoop
from policies._sglang_radix import RadixLoop
from simulator.core import Request, View
from simulator.policy import Planner, PolicyBase, Surroundings
from simulator.promises import Promises

GIB = 2**30
INPUT_MARGIN = 5
"""Tokens by which a prompt has to be shorter than the longest sequence (`max_req_input_len`)."""


@dataclass(frozen=True)
class Sglang(PolicyBase):
    """Options by SGLang's names, and two that say what clients declare where the trace does not.

    `chunked_prefill_size` -1: prompts are never cut. `max_running_requests` and `context_length` unset: what the server
    works out from its memory; the model's longest sequence. `max_new_tokens` is the output limit that every client
    declares (unset: exactly what it will get), and without `ignore_eos` an output ends by a token that nobody foresees.
    """

    chunked_prefill_size: Annotated[int, Ge(-1)] = 8192
    max_prefill_tokens: Annotated[int, Ge(1)] = 16384
    max_running_requests: Annotated[int, Ge(1)] | None = None
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    schedule_conservativeness: Annotated[float, Gt(0), Le(1e6)] = 1.0
    enable_mixed_chunk: bool = False
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    page_size: Annotated[int, Ge(1), Le(2**20)] = 1
    context_length: Annotated[int, Ge(1)] | None = None
    max_new_tokens: Annotated[int, Ge(1)] | None = None
    ignore_eos: bool = True

    on_pipelines: ClassVar[bool] = False
    own_engine: ClassVar[str] = "SGLang"
    preemption_drops_token: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.chunked_prefill_size == 0:
            raise ValueError("chunked_prefill_size must be positive, or -1 for whole prompts")
        if self.chunked_prefill_size > 0 and self.chunked_prefill_size % self.page_size:
            raise ValueError(
                f"chunked_prefill_size ({self.chunked_prefill_size}) must be a multiple of page_size ({self.page_size})"
            )

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, given: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003 - the interface
        """Defaults by GPU memory and model (`ServerArgs`)."""
        gib = surroundings.gpu_memory_bytes / GIB
        chunk = 2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
        return {"chunked_prefill_size": chunk, "context_length": surroundings.max_position_embeddings}

    @property
    def block_size(self) -> int:
        """SGLang's pages."""
        return self.page_size

    @property
    def steps_in_flight(self) -> int:
        """The overlap schedule plans a step while the one before it runs."""
        return 1 if self.disable_overlap_schedule else 2

    @property
    def promises(self) -> Promises:
        """Only the number of running requests is a limit: `max_prefill_tokens` is looked at between prompts."""
        return Promises(sequence_limit=self.max_running_requests)

    @property
    def caches_prefixes(self) -> bool:
        """The radix cache."""
        return not self.disable_radix_cache

    def start(self, view: View, *, contents: bool) -> Planner:  # noqa: ARG002 - a retracted request may find its own
        """A loop with its queue, batches and ratio."""
        return SglangLoop(self, view) if self.disable_radix_cache else RadixLoop(self, view)

    def most_running(self, pool: int) -> int:
        """Request slots: `max_running_requests`, or by the tokens of the pool (`ModelRunner.init_memory_pool`)."""
        if self.max_running_requests is not None:
            return self.max_running_requests
        slots = int(pool / (self.context_length or pool) * 512)
        return max(1, min(max(slots, 2048), 4096, pool // 2))

    def longest_sequence(self, pool: int) -> int:
        """`max_req_len`: tokens of prompt and output."""
        return min(self.context_length or pool, pool) - 1

    def output_limit(self, request: Request, view: View) -> int:
        """`max_new_tokens` of an arriving request, cut at the context and at the pool (`init_req_max_new_tokens`)."""
        pool, page, prompt = view.total_blocks * view.block_size, view.block_size, request.prompt_tokens
        declared = request.max_tokens if self.max_new_tokens is None else self.max_new_tokens
        declared = min(declared, self.longest_sequence(pool) - prompt - 1)
        return max(0, min(declared, pool - -(-prompt // page) * page - page - 1))

    def target_tokens(self, request: Request, view: View) -> int:
        """All of the output up to what was declared; the prompt's step yields one in any case."""
        return max(1, min(request.output_tokens, self.output_limit(request, view)))

    def rejects(self, request: Request, view: View) -> str | None:
        """A prompt too long for the context or pool, and what would not be admitted even by an empty server."""
        pool, page = view.total_blocks * view.block_size, view.block_size
        longest = self.longest_sequence(pool) - INPUT_MARGIN
        if request.prompt_tokens >= longest:
            return f"prompt of {request.prompt_tokens} tokens, the longest is {max(longest - 1, 0)}"
        for known in (request.prompt_tokens, request.known):
            still = max(self.output_limit(request, view) - (known - request.prompt_tokens), 0)
            if not self._admits_alone(request, known, still, pool, page):
                return f"{known} + {still} tokens, with a KV cache of {pool} not even an empty server admits it"
        return None

    def _admits_alone(self, request: Request, known: int, still: int, pool: int, page: int) -> bool:
        """Whether `request` passes the test of an empty server with `known` tokens and at most `still` to come."""
        if self.disable_radix_cache and self.ignores_eos(request):
            room = pool - -(-known // page) * page - page
            return room >= 0 and (not still or room - still > 1)
        return known + min(still, LONGEST_OUTPUT) + page < pool

    def ignores_eos(self, request: Request) -> bool:
        """Whether only the declared limit ends the output."""
        return self.ignore_eos and request.ignore_eos
