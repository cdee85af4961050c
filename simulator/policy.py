"""What a scheduling policy is: the interface, its defaults, and planners for those that have to remember.

A policy is a frozen dataclass whose fields are its YAML options and whose `plan(view)` returns the `Batch` that the
next iteration runs. It decides and never changes anything: the scheduler applies the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from simulator.core import Batch, Request, View
from simulator.promises import Promises

if TYPE_CHECKING:
    from simulator.memory import ContentMemory


class Planner(Protocol):
    """Who plans the steps of one engine: a policy, or what its `start` gives where it has to remember something."""

    @property
    def memory(self) -> ContentMemory | None: ...

    def plan(self, view: View) -> Batch | None: ...

    def arrived(self, request: Request) -> None: ...

    def left(self, request: Request) -> None: ...

    def ended(self, request: Request) -> None: ...

    completed: Callable[[int], None] | None


class Remembering:
    """Defaults of a planner with a state of its own: one for each engine, asked for a plan once a step.

    It may change itself in any call, and nothing else. Several steps of decodes alone can pass between two plans where
    a batch promised them (`Batch.holds`): `view.decodes.clock` tells how many.
    """

    memory: ContentMemory | None = None
    """KV memory that knows what its blocks hold; None: blocks are only counted."""

    def plan(self, view: View) -> Batch | None:
        """See `PolicyBase.plan`."""
        raise TypeError(f"{type(self).__name__} defines no plan(view)")

    def arrived(self, request: Request) -> None:
        """`request` waits now; not told of one that can never run."""

    def left(self, request: Request) -> None:
        """`request` has its last token here and is no longer in the batch, but keeps what it holds: in a prefill pool,
        until its KV has been sent. `ended` follows."""

    def ended(self, request: Request) -> None:
        """`request` has finished, or was dropped; what it held is free."""

    completed: Callable[[int], None] | None = None
    """Called with its number when the outputs of a step are there, before those who finish with it have ended; not for
    steps that pass unplanned. None: not called."""


class Policy(Protocol):
    """A scheduling policy: a frozen dataclass with `plan`. The class attributes below have defaults in `PolicyBase`."""

    null_blocks: ClassVar[int]
    on_pipelines: ClassVar[bool]
    preemption_drops_token: ClassVar[bool]
    own_engine: ClassVar[str | None]
    waiting_order: Callable[[Request], Any] | None

    @property
    def steps_in_flight(self) -> int: ...

    @property
    def chunks_in_flight(self) -> bool: ...

    @property
    def model_length(self) -> int | None: ...

    @property
    def caches_prefixes(self) -> bool: ...

    @property
    def block_size(self) -> int | None: ...

    @property
    def promises(self) -> Promises: ...

    def start(self, view: View, *, contents: bool) -> Planner: ...

    def plan(self, view: View) -> Batch | None: ...

    def target_tokens(self, request: Request, view: View) -> int: ...

    def reserve_tokens(self, request: Request) -> int: ...

    def landing_tokens(self, request: Request) -> int: ...

    def rejects(self, request: Request, view: View) -> str | None: ...


class PolicyBase:
    """Defaults of the policy interface; a policy inherits it and defines `plan`, or `start` if it has to remember."""

    null_blocks: ClassVar[int] = 0
    """Blocks of the pool that are never handed out."""

    own_engine: ClassVar[str | None] = None
    """The engine that alone schedules so: with the profile of another one a run says that the host is not its own."""

    on_pipelines: ClassVar[bool] = True
    """Whether it can plan the micro-batches of a pipeline."""

    preemption_drops_token: ClassVar[bool] = False
    """Whether a preempted request loses the token of a step that is under way, and samples it again; one stage only."""

    completed: Callable[[int], None] | None = None
    """Only a planner has to know; see `Remembering`."""

    @property
    def memory(self) -> ContentMemory | None:
        """Only a planner has one of its own; see `Remembering`."""
        return None

    waiting_order: Callable[[Request], Any] | None = None
    """Sort key of the waiting queue; None = first come first served, a preempted request in front."""

    @property
    def caches_prefixes(self) -> bool:
        """Whether computed blocks are kept and found again by later prompts that begin alike."""
        return False

    @property
    def steps_in_flight(self) -> int:
        """Steps scheduled and not yet complete, on one stage: 1 = the next step is planned with all outputs known."""
        return 1

    @property
    def chunks_in_flight(self) -> bool:
        """In a pipeline: whether a prompt's next chunk may run while one is on its way through the stages."""
        return False

    @property
    def model_length(self) -> int | None:
        """Prompt + output at which generation is cut; None = never."""
        return None

    @property
    def block_size(self) -> int | None:
        """Tokens of a KV block where that is an option of the policy's engine; None = the experiment's."""
        return None

    @property
    def promises(self) -> Promises:
        """Budgets and other promises of this policy with these options; `simulator.conformance` checks them."""
        return Promises()

    def start(self, view: View, *, contents: bool) -> Planner:
        """Who plans the steps of an engine that has just begun: the policy itself, or a `Remembering` planner.

        `contents` says that requests carry block keys.
        """
        return self

    def plan(self, view: View) -> Batch | None:
        """The next iteration, or None to schedule nothing. Must not change anything it is given."""
        raise TypeError(f"{type(self).__name__} defines no plan(view)")

    def arrived(self, request: Request) -> None:
        """Nothing to remember."""

    def left(self, request: Request) -> None:
        """Nothing to remember."""

    def ended(self, request: Request) -> None:
        """Nothing to remember."""

    def target_tokens(self, request: Request, view: View) -> int:
        """Output tokens that an arriving `request` will get: all of its own, or up to the longest sequence."""
        length = self.model_length
        if length is None or request.prompt_tokens + request.output_tokens <= length:
            return request.output_tokens
        return max(1, length - request.prompt_tokens)

    def reserve_tokens(self, request: Request) -> int:
        """KV slots, in tokens, that admission takes at once; 0 = only those of the tokens being computed."""
        return 0

    def landing_tokens(self, request: Request) -> int:
        """KV slots, in tokens, that `request` takes at once in a decode pool, where it comes with its KV entries."""
        return self.reserve_tokens(request)

    def rejects(self, request: Request, view: View) -> str | None:
        """Why `request` can never run, or None."""
        length = self.model_length
        if length is not None and request.prompt_tokens > length:
            return f"prompt of {request.prompt_tokens} tokens, max_model_len {length}"
        needed = -(-max(request.prompt_tokens, self.reserve_tokens(request)) // view.block_size)
        if needed > view.total_blocks:
            return f"needs {needed} KV-cache blocks at once, the cache has {view.total_blocks}"
        return None

    @classmethod
    def defaults_for(cls, surroundings: Surroundings, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options whose default depends on the GPU, the model or the options that are `given` (not yet validated)."""
        return {}


class Surroundings:
    """What a policy's defaults may depend on: GPU name and memory in bytes, and the model's longest sequence."""

    __slots__ = ("gpu_memory_bytes", "gpu_name", "max_position_embeddings")

    def __init__(self, gpu_name: str, gpu_memory_bytes: int, max_position_embeddings: int) -> None:
        self.gpu_name = gpu_name
        self.gpu_memory_bytes = gpu_memory_bytes
        self.max_position_embeddings = max_position_embeddings
