"""Whether chunked prefill computes what prefill at once does, and whether the mask is causal and right-aligned.

Three checks on the model that is to be measured, its kernels, caches and slot mapping included:

1. A prompt at once, in uneven chunks, and in chunks beside decodes of other requests: the same hidden states at all
   positions, and the same token. So do the other requests, against their own prompts at once.
2. Another token in the prompt leaves all earlier positions as they were, and changes all from there on.
3. Who attends to whom, seen directly: with queries of 0 all keys weigh the same, and with values that are 1 in one
   feature at one position and 0 elsewhere, feature f of the output is 1 / n where its position is among the n keys that
   a token attends to. Each token has to attend to all before it and to itself.

Every sequence is given pages that no other has held, so what an earlier run left in the cache cannot help.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from profiler.batch import Scheduled, pages_of
from profiler.forward import Model, Step

if TYPE_CHECKING:
    import torch

CHUNKS = (1, 2, 5, 16, 17, 64, 128, 3, 200, 175)
PROMPT = sum(CHUNKS)
RIDERS = (1, 121, 255)
"""Tokens of the prompts of those that decode beside the chunks."""
CHANGED = 40
"""The token that the second check changes: the last of a chunk."""
FLOAT32_EPS = 2.0**-23
MOST_ROUNDS = 4


class VerificationError(Exception):
    """The forward pass is wrong; the message says what differs."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: `error` may be at most `limit`."""

    what: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Not so for NaN either."""
        return self.error <= self.limit

    def __str__(self) -> str:
        shown = str(self.error) if isinstance(self.error, int) else f"{self.error:.1e}"
        return f"{self.what}: {shown} ({'' if self.passed else 'WRONG, '}at most {self.limit:.2g})"


def verify(model: Model) -> list[Check]:
    """All checks, in the order above. The model needs `needed_pages` pages. VerificationError if one fails."""
    checks = [*_Chunked(model).checks(), *_causality(model), _mask(model)]
    wrong = [str(check) for check in checks if not check.passed]
    if wrong:
        raise VerificationError("; ".join(wrong))
    return checks


def needed_pages(page_size: int) -> int:
    """Pages of the largest check; every check starts with an empty cache."""
    riders = [Scheduled(0, tokens + len(CHUNKS)) for tokens in RIDERS]
    return sum(pages_of([*[Scheduled(0, PROMPT)] * 5, *riders, *riders], page_size))


def tolerance(layers: int, dtype: "torch.dtype") -> float:
    """Relative difference of hidden states that rounding explains.

    Each layer rounds the residual anew, so the error grows with the square root of their number: with 24 layers of
    bfloat16 or float16 it is 2.0 to 2.5 times the type's epsilon, a third of what is allowed. The sums inside matrix
    products are in float32, in an order that depends on the number of tokens.
    """
    import torch

    return 1.5 * sqrt(1 + layers) * (float(torch.finfo(dtype).eps) + 64 * FLOAT32_EPS)


@dataclass(frozen=True)
class _Request:
    """Token ids of a request, int64 (tokens), and the pages that it holds."""

    ids: "torch.Tensor"
    pages: list[int]


Part = tuple[_Request, int, int]
"""A request's share of a step: (request, context before, new tokens)."""


@dataclass
class _Desk:
    """Hands out requests with fresh pages, and runs steps of them."""

    model: Model
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.free = self.random.permutation(self.model.place.pages).tolist()

    def ids(self, tokens: int) -> "torch.Tensor":
        """Random token ids of the vocabulary, of a rank's part those that it holds."""
        return self.model.place.upload(self.random.integers(self.model.place.shape.vocab_size, size=tokens))

    def request(self, ids: "torch.Tensor") -> _Request:
        """A request of these tokens on pages that nobody has held."""
        [count] = pages_of([Scheduled(0, len(ids))], self.model.place.backend.page_size)
        pages, self.free = self.free[:count], self.free[count:]
        return _Request(ids, pages)

    def step(self, parts: Sequence[Part]) -> Step:
        """The step of these parts."""
        import torch

        ids = torch.cat([request.ids[context : context + new] for request, context, new in parts])
        scheduled = [Scheduled(context, new) for _, context, new in parts]
        return self.model.step(scheduled, [request.pages for request, _, _ in parts], ids)

    def run(self, parts: Sequence[Part]) -> "list[torch.Tensor]":
        """Hidden states after the last layer, float32 (new tokens, hidden) of each part."""
        hidden, residual = self.step(parts).run_layers()
        return list((hidden.float() + residual.float()).split([new for _, _, new in parts]))

    def run_chunks(self, request: _Request) -> "torch.Tensor":
        """Hidden states of a prompt run in chunks, alone."""
        import torch

        return torch.cat([self.run([(request, context, new)])[0] for context, new in chunks()])


def chunks() -> list[tuple[int, int]]:
    """(context before, new tokens) of each chunk."""
    return [(end - new, new) for end, new in zip(accumulate(CHUNKS), CHUNKS, strict=True)]


class _Chunked:
    """The first check."""

    def __init__(self, model: Model):
        self.desk, self.model = _Desk(model), model
        self.prompt = self.desk.ids(PROMPT)
        self.limit = tolerance(model.place.shape.num_hidden_layers, model.place.dtype)

    def checks(self) -> list[Check]:
        """Chunks alone, chunks beside decodes, those decodes, and the token."""
        desk, whole = self.desk, self.desk.request(self.prompt)
        [expected] = desk.run([(whole, 0, PROMPT)])
        alone = desk.run_chunks(desk.request(self.prompt))
        riders = [self.desk.ids(tokens + len(CHUNKS)) for tokens in RIDERS]
        beside, rode, last = self._beside_decodes(riders)
        at_once = [desk.request(ids) for ids in riders]
        rode_expected = desk.run([(request, 0, len(request.ids)) for request in at_once])
        name = f"a prompt of {PROMPT} tokens in {len(CHUNKS)} chunks against at once, hidden states"
        return [
            Check(name, worst_row(alone, expected), self.limit),
            Check(f"{name}, beside {len(RIDERS)} decodes", worst_row(beside, expected), self.limit),
            Check("those decodes against their prompts at once", max(map(worst_row, rode, rode_expected)), self.limit),
            self._token(desk.step([(whole, 0, PROMPT)]), last),
        ]

    def _beside_decodes(self, ids: "list[torch.Tensor]") -> "tuple[torch.Tensor, list[torch.Tensor], Step]":
        """Hidden states of the prompt and of the riders, and the last step, the prompt's chunk at its end."""
        import torch

        prompt, riders = self.desk.request(self.prompt), [self.desk.request(own) for own in ids]
        rode = [[part] for part in self.desk.run([(one, 0, n) for one, n in zip(riders, RIDERS, strict=True)])]
        own = []
        for place, (context, new) in enumerate(chunks()):
            decodes = [(one, tokens + place, 1) for one, tokens in zip(riders, RIDERS, strict=True)]
            parts = [*decodes, (prompt, context, new)]
            *decoded, chunk = self.desk.run(parts)
            own.append(chunk)
            for so_far, states in zip(rode, decoded, strict=True):
                so_far.append(states)
        return torch.cat(own), [torch.cat(states) for states in rode], self.desk.step(parts)

    def _token(self, whole: Step, last: Step) -> Check:
        """How far the token sampled after chunks is from the most likely one, in standard deviations of the logits.

        0 where both are the same; of two nearly equal logits rounding decides.
        """
        logits = whole.logits()[-1].float()
        sampled = last() if self.model.gathered is None else last.logits().argmax(dim=-1)
        gap = float((logits.max() - logits[int(sampled[-1])]) / logits.std())
        return Check("the token sampled after chunks against at once, in standard deviations of logits", gap,
                     4 * self.limit)  # fmt: skip


def _causality(model: Model) -> list[Check]:
    """The second check, at once and in chunks. What differs between two runs of the same prompt is no change."""
    desk = _Desk(model)
    prompt = desk.ids(PROMPT)
    changed = prompt.clone()
    changed[CHANGED] = (changed[CHANGED] + 1) % model.place.shape.vocab_size
    [before] = desk.run([(desk.request(prompt), 0, PROMPT)])
    [again] = desk.run([(desk.request(prompt), 0, PROMPT)])
    [after] = desk.run([(desk.request(changed), 0, PROMPT)])
    in_chunks = [desk.run_chunks(desk.request(ids)) for ids in (prompt, changed)]
    noise = 4 * worst_row(again, before)
    checks = []
    for how, (left, right) in {"at once": (before, after), "in chunks": (in_chunks[0], in_chunks[1])}.items():
        moved = row_errors(right, left)
        unchanged = int((~(moved[CHANGED:] > noise)).sum())
        checks += [
            Check(f"change of earlier positions by another token {CHANGED}, {how}", _largest(moved[:CHANGED]), noise),
            Check(f"later positions that it leaves as they were, {how}", unchanged, 0),
        ]
    return checks


def _mask(model: Model) -> Check:
    """The third check, through the first layer's cache: at once, in chunks, and decodes beside them."""
    place = model.place
    features = place.shape.num_key_value_heads * place.shape.head_dim
    order = _probe_order()
    wrong = pairs = 0
    for start in range(0, min(len(order), MOST_ROUNDS * features), features):
        probes = np.full(features, -1)
        probes[: len(order[start : start + features])] = order[start : start + features]
        desk = _Desk(model)
        request, whole = desk.request(desk.ids(PROMPT)), desk.request(desk.ids(PROMPT))
        riders = [desk.request(desk.ids(tokens + len(CHUNKS))) for tokens in RIDERS]
        steps: list[list[Part]] = [[(whole, 0, PROMPT)], [(one, 0, n) for one, n in zip(riders, RIDERS, strict=True)]]
        for place_of, (context, new) in enumerate(chunks()):
            decodes = [(one, tokens + place_of, 1) for one, tokens in zip(riders, RIDERS, strict=True)]
            steps.append([*decodes, (request, context, new)])
        for parts in steps:
            misread, read = _misread(model, desk.step(parts), place.upload(probes))
            wrong, pairs = wrong + misread, pairs + read
    return Check(f"wrong pairs of a token and what it attends to, of {pairs}", wrong, 0)


def _probe_order() -> list[int]:
    """Positions of the prompt, those at ends of chunks and of the riders' prompts first."""
    edges = [end + shift for end in (*accumulate(CHUNKS), *RIDERS) for shift in (-1, 0)]
    rest = np.random.default_rng(1).permutation(PROMPT).tolist()
    return [position for position in dict.fromkeys([*edges, *rest]) if position < PROMPT]


def _misread(model: Model, step: Step, probes: "torch.Tensor") -> tuple[int, int]:
    """(pairs of a token and a probed position where the output is not what the mask makes it, all pairs)."""
    import torch

    place, shape = model.place, model.place.shape
    kv_heads = shape.num_key_value_heads
    qkv = place.normal(len(step.ids), shape.qkv_features)
    qkv[:, : shape.num_attention_heads * shape.head_dim] = 0
    qkv[:, -len(probes) :] = (step.positions[:, None] == probes).to(place.dtype)
    out = step.attend_to(qkv, model.layers[0]).float().view(len(qkv), kv_heads, -1, shape.head_dim)
    seen = (probes >= 0) & (probes <= step.positions[:, None])
    expected = (seen / (step.positions[:, None] + 1.0)).view(len(qkv), kv_heads, 1, shape.head_dim)
    near = (out - expected).abs() <= 4 * torch.finfo(place.dtype).eps * expected + 1e-6
    return int((~near.all(dim=2)).sum()), len(qkv) * int((probes >= 0).sum())


def row_errors(actual: "torch.Tensor", expected: "torch.Tensor") -> "torch.Tensor":
    """Of each row |actual - expected| / |expected| in the 2-norm."""
    actual, expected = actual.double(), expected.double()
    return (actual - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)


def worst_row(actual: "torch.Tensor", expected: "torch.Tensor") -> float:
    """The largest of `row_errors`; infinite where something is not a number."""
    return _largest(row_errors(actual, expected))


def _largest(errors: "torch.Tensor") -> float:
    worst = float(errors.max())
    return worst if worst == worst else float("inf")
