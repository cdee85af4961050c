"""A request trace in memory: arrays, one entry a request, in order of arrival."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """Requests sorted by arrival (ties in file order).

    `arrival_ns` (int64 nanoseconds), `prompt_tokens` and `output_tokens` (int64, at least 1) have one entry a request,
    and so have the optional columns. `source` says what was read: path, format, SHA-256 and how rows were mended.
    """

    name: str
    format: str
    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    request_id: tuple[str, ...] | None = None
    priority: Ints | None = None
    session_id: tuple[str, ...] | None = None
    prefix_ids: tuple[tuple[int, ...], ...] | None = None
    notes: tuple[str, ...] = ()
    path: str = ""
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def first(self, count: int) -> "Trace":
        """The first `count` requests."""
        return replace(
            self,
            arrival_ns=self.arrival_ns[:count],
            prompt_tokens=self.prompt_tokens[:count],
            output_tokens=self.output_tokens[:count],
            request_id=self.request_id and self.request_id[:count],
            priority=None if self.priority is None else self.priority[:count],
            session_id=self.session_id and self.session_id[:count],
            prefix_ids=self.prefix_ids and self.prefix_ids[:count],
        )

    def sped_up(self, factor: float) -> "Trace":
        """The same requests `factor` times as dense: arrivals rebased to the first, then divided."""
        rebased = self.arrival_ns - self.arrival_ns[:1]
        return replace(self, arrival_ns=np.rint(rebased / factor).astype(np.int64))
