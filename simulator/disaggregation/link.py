"""How long a prompt's KV cache is on its way from the engine that computed it to the one that goes on with it.

A prefill replica sends by a link of its own, one transfer at a time and in order: what its GPUs send leaves by their
own ports. `whole` sends everything once the prompt is computed. `layerwise` (Splitwise, ISCA'24) sends the KV of a
layer while the next is computed: in a step of L layers from s to e, layer i is there to be sent at s + (e - s) i / L.
If the link was free in time, what remains after e is

    max(l, L l - (L - 1) / L (e - s))

with l the time of a layer's share: the last layer, or what the link could not keep up with. The prompts that one step
completes take turns in each layer. Where a prompt came in chunks, all of its KV goes with the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.models import ModelShape
from simulator.network import Network

_NS_PER_US = 1000.0

Sending = Callable[[int], int]
"""Nanoseconds to send the KV cache of so many tokens."""


@dataclass(frozen=True)
class KvSends:
    """KV of `model` by `network`; each of `lanes` pairs of GPUs sends its part."""

    network: Network
    model: ModelShape
    lanes: int = 1

    def whole_ns(self, tokens: int) -> int:
        """All layers in one message."""
        return self._ns(tokens * self.model.kv_bytes_per_token)

    def layer_ns(self, tokens: int) -> int:
        """One layer."""
        return self._ns(tokens * self.model.kv_bytes_per_token // self.model.num_hidden_layers)

    def _ns(self, size: int) -> int:
        return int(self.network.send_us(-(-size // self.lanes)) * _NS_PER_US)


class Link:
    """The link of one prefill replica; times in integer nanoseconds."""

    def __init__(self, whole_ns: Sending, layer_ns: Sending, layers: int) -> None:
        self._whole_ns, self._layer_ns, self._layers = whole_ns, layer_ns, layers
        self._free_ns = 0

    def send(self, tokens: int, now_ns: int) -> int:
        """When the KV of `tokens` tokens, all there at `now_ns`, has arrived."""
        self._free_ns = max(self._free_ns, now_ns) + self._whole_ns(tokens)
        return self._free_ns

    def send_layers(self, prompts: Sequence[int], start_ns: int, end_ns: int, now_ns: int) -> list[int]:
        """The same for each of `prompts` (tokens) that a step from `start_ns` to `end_ns` completed, sent as it ran.

        `now_ns` is when the engine knows of it: nothing arrives before. O(layers + prompts).
        """
        layer_ns = [self._layer_ns(tokens) for tokens in prompts]
        free_ns, together_ns, time_ns = self._free_ns, sum(layer_ns), end_ns - start_ns
        for layer in range(1, self._layers):
            free_ns = max(free_ns, start_ns + time_ns * layer // self._layers) + together_ns
        free_ns = max(free_ns, end_ns)
        arrivals = []
        for last_ns in layer_ns:
            free_ns += last_ns
            arrivals.append(max(free_ns, now_ns))
        self._free_ns = free_ns
        return arrivals
