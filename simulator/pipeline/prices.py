"""What a micro-batch costs on each stage."""

from collections.abc import Callable, Sequence
from typing import Protocol

from simulator.costs import StepCosts
from simulator.pipeline.layers import Stage
from simulator.table_costs import TableCosts


class StagePrices(Protocol):
    """Prices of micro-batches by stage; the arguments are those of `StepCosts.step_ns`."""

    def stages_ns(
        self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """GPU time of each stage, nanoseconds."""
        ...

    def padding_ns(self, tokens: int, padded: int) -> Sequence[float]:
        """What running `tokens` as `padded` takes longer on each stage."""
        ...


class SharedByLayers:
    """A formula for whole steps, shared out by layers, to the nanosecond: the stages' times are together the step's."""

    def __init__(self, costs: StepCosts, stages: Sequence[Stage]) -> None:
        self._step_ns, self._token_ns = costs.step_ns, costs.token_ns
        layers = sum(stage.layers for stage in stages)
        self._shares = [stage.layers / layers for stage in stages]
        held = [sum(stage.layers for stage in stages[: place + 1]) for place in range(len(stages))]
        self._up_to = list(zip([0, *held[:-1]], held, strict=True))
        self._layers = layers

    def stages_ns(
        self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """See `StagePrices.stages_ns`."""
        whole, layers = self._step_ns(decodes, decode_context, longest, chunks), self._layers
        return [whole * last // layers - whole * first // layers for first, last in self._up_to]

    def padding_ns(self, tokens: int, padded: int) -> Sequence[float]:
        """See `StagePrices.padding_ns`."""
        longer = self._token_ns(padded) - self._token_ns(tokens)
        return [longer * share for share in self._shares]


class OfTable:
    """A table's prices: layers on every stage, the embedding on the first, final norm, LM head and sampling on the
    last."""

    def __init__(self, costs: TableCosts, stages: Sequence[Stage]) -> None:
        self._parts, self._slowed = costs.parts_ns, costs.slowed_ns
        self._embedding_ns: Callable[[int], float] = costs.embedding_ns
        self._token_ns = costs.token_ns
        layers = sum(stage.layers for stage in stages)
        kinds = list(dict.fromkeys(stages))
        self._kinds = [(stage.layers / layers, stage.first, stage.last) for stage in kinds]
        self._kind_of = [kinds.index(stage) for stage in stages]

    def stages_ns(
        self, decodes: int, decode_context: int, longest: int, chunks: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """See `StagePrices.stages_ns`."""
        if not (decodes or chunks):
            return [0] * len(self._kind_of)
        embedding, layers, head = self._parts(decodes, decode_context, longest, chunks)
        prices = [share * layers + first * embedding + last * head for share, first, last in self._kinds]
        if chunks:
            prices = [self._slowed(price) for price in prices]
        return [prices[kind] for kind in self._kind_of]

    def padding_ns(self, tokens: int, padded: int) -> Sequence[float]:
        """See `StagePrices.padding_ns`."""
        embedding = self._embedding_ns(padded) - self._embedding_ns(tokens)
        layers = self._token_ns(padded) - self._token_ns(tokens) - embedding
        longer = [share * layers + first * embedding for share, first, _ in self._kinds]
        return [longer[kind] for kind in self._kind_of]


def stage_prices(costs: StepCosts, stages: Sequence[Stage]) -> StagePrices:
    """The prices of `costs` by stage."""
    return OfTable(costs, stages) if isinstance(costs, TableCosts) else SharedByLayers(costs, stages)
