"""What the ranks of a tensor-parallel group exchange in a step, in nanoseconds.

Each rank holds a part of every matrix (Shoeybi et al., arXiv 1909.08053): the outputs of attention and of the MLP are
sums over ranks, so each layer has two all-reduces of (tokens, hidden), the embedding one; the logits of each sequence
are gathered.
"""

from dataclasses import dataclass

from simulator.cost_table import CostTable
from simulator.models import ModelShape
from simulator.network import Network

_NS_PER_US = 1000.0


@dataclass(frozen=True)
class Sends:
    """Activations of `model` on their way to the next pipeline stage, by `network`.

    With several `ranks` a stage each sends its part, and the next stage's gather the whole by `inside`.
    """

    network: Network
    inside: Network
    model: ModelShape
    ranks: int
    tensors: int = 1
    """Tensors of (tokens, hidden) that are sent: vLLM sends the residual apart."""

    def tokens_ns(self, tokens: int) -> float:
        """From the end of a step of `tokens` on one stage until the next can start it."""
        size = self.tensors * tokens * self.model.hidden_size * self.model.dtype_bytes
        gathered_us = self.inside.all_gather_us(size, self.ranks)
        return (self.network.send_us(-(-size // self.ranks)) + gathered_us) * _NS_PER_US


@dataclass(frozen=True)
class Exchanges:
    """Those of `model` among `ranks` on `network`. An engine may fuse an all-reduce with the norm after it, which saves
    `saved_us` of each."""

    network: Network
    model: ModelShape
    ranks: int
    saved_us: float = 0.0

    def tokens_ns(self, tokens: int) -> float:
        """All-reduces of a step of `tokens`."""
        return (2 * self.model.num_hidden_layers + 1) * self.embedding_ns(tokens)

    def embedding_ns(self, tokens: int) -> float:
        """The one all-reduce of them that is the embedding's."""
        size = tokens * self.model.hidden_size * self.model.dtype_bytes
        return max(self.network.all_reduce_us(size, self.ranks) - self.saved_us, 0.0) * _NS_PER_US

    def sequences_ns(self, sequences: int) -> float:
        """The all-gather of the logits of `sequences`."""
        size = sequences * self.model.vocab_size * self.model.dtype_bytes
        return self.network.all_gather_us(size, self.ranks) * _NS_PER_US


def exchanges_of(table: CostTable, network: Network | None, saved_us: float = 0.0) -> Exchanges | None:
    """What the ranks exchange of which `table` is one, on `network`.

    None for one rank, and where no network is known. Raises InputError where it is not of so many ranks.
    """
    about = table.metadata
    if network is None or about.tensor_parallel == 1:
        return None
    exchanges = Exchanges(network, about.model, about.tensor_parallel, saved_us)
    exchanges.embedding_ns(1), exchanges.sequences_ns(1)  # a network that is not of so many ranks says so
    return exchanges
