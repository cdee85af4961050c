"""What a layer takes beyond the sum of its operators timed alone.

Timed alone, one kernel follows another of its kind; in a layer, kernels of different kinds take turns, each
of which starts about a microsecond later. On a GPU that is some 5 to 10 us a layer, a twentieth of a small
step. It is measured on whole layers of decodes, where matrix products take the same time in both cases, and
counted as elementwise work.
"""

from dataclasses import replace
from itertools import cycle, islice
from statistics import median

from profiler.grid import LINEAR_OPERATORS, Point
from profiler.operators import BUILDERS, Bench, Elementwise
from profiler.paged import PagedAttention
from profiler.timing import Call, Timer

DECODES = (1, 16, 64)
CONTEXT = 256


def turns_us(bench: Bench, attention: PagedAttention, timer: Timer) -> float:
    """Microseconds a layer, the median over some numbers of decodes; never below 0."""
    bench = replace(bench, max_tokens=max(DECODES))
    linear = [BUILDERS[name](bench) for name in LINEAR_OPERATORS]
    elementwise = Elementwise(bench)
    beyond = []
    for decodes in DECODES:
        point = Point("attention", tokens=decodes, decodes=decodes, decode_context=CONTEXT)
        products = [list(operator.calls(point)) for operator in linear]
        attend = attention.calls(point)
        alone = [*products, list(elementwise.calls(point)), attend]
        together = layer_calls(decodes, elementwise, products, attend)
        beyond.append(timer.time(together).time_us - sum(timer.time(calls).time_us for calls in alone))
    return max(median(beyond), 0.0)


class Layers:
    """Whole layers of one prompt, as many calls as the model has layers.

    They take as long as a step, in which a GPU may have to lower its clocks as it has not for one operator.
    """

    def __init__(self, bench: Bench, attention: PagedAttention):
        self.linear = [BUILDERS[name](bench) for name in LINEAR_OPERATORS]
        self.elementwise = Elementwise(bench)
        self.attention, self.layers = attention, bench.shape.num_hidden_layers

    def calls(self, point: Point) -> list[Call]:
        """One call a layer of a prompt of the point's tokens."""
        tokens = point.tokens
        prompt = Point("attention", prefills=1, prefill_tokens=tokens)
        products = [list(operator.calls(point)) for operator in self.linear]
        return layer_calls(tokens, self.elementwise, products, self.attention.calls(prompt), self.layers)


def layer_calls(
    tokens: int, elementwise: Elementwise, products: list[list[Call]], attend: list[Call], layers: int | None = None
) -> list[Call]:
    """Calls of a whole layer each, its kernels in a layer's order, on different weights, pages and caches.

    `layers` of them, or as many as there are different ones.
    """
    qkv, output, mlp = products
    layers = layers or max(len(calls) for calls in (*products, attend))

    def layer(project: Call, caches: tuple, attention: Call, out: Call, feed: Call) -> Call:  # type: ignore[type-arg]
        def call() -> None:
            elementwise.norms_of_attention(tokens)
            project()
            elementwise.rotate_and_write(tokens, *caches)
            attention()
            out()
            elementwise.norms_of_mlp(tokens)
            feed()

        return call

    parts = zip(cycle(qkv), cycle(elementwise.caches), cycle(attend), cycle(output), cycle(mlp), strict=False)
    return [layer(*part) for part in islice(parts, layers)]
