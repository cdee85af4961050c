"""Whole forward passes: against a plain transformer without cache or fusion, and what they take of the memory."""

from dataclasses import replace

import pytest

from profiler.attention import TorchAttention
from profiler.batch import chunk, decode, share_pages
from profiler.forward import Model, Place, scheduled_of
from profiler.fused import TorchFused, relative_error
from profiler.room import Room, cache_pages, longest
from simulator.batch_file import ListedBatch
from simulator.errors import InputError
from simulator.models import ModelShape
from tests.profiler.machines import TINY, needs_torch

pytestmark = [*needs_torch, pytest.mark.usefixtures("one_thread")]

VARIANTS = {
    "llama": {},
    "one norm": {"norms_per_layer": 1},
    "three norms": {"norms_per_layer": 3},
    "four norms": {"norms_per_layer": 4},
    "norms of heads": {"qk_norm": True},
    "learned positions, no gate, tied": {
        "position_embedding": "learned",
        "gated_mlp": False,
        "tie_word_embeddings": True,
    },
    "alibi": {"position_embedding": "alibi"},
}


def build(shape: ModelShape = TINY, ranks: int = 1, pages: int = 40) -> Model:
    """A model on the CPU with pages of 16."""
    import torch

    torch.manual_seed(0)
    place = Place(shape.shard(ranks), TorchAttention(), TorchFused(), "cpu", torch.float32, pages, 600, 8, ranks)
    return Model(place)


def plain(model: Model, ids):
    """Hidden states and logits of a whole prompt, written out head by head from the definition."""
    import torch
    from torch.nn import functional as F

    shape, tokens = model.place.shape, len(ids)
    heads, size = shape.num_attention_heads, shape.head_dim
    queries_per_key = heads // shape.num_key_value_heads

    def norm(x, weight):
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)

    def rotated(x):
        if model.rotary is None:
            return x
        cos, sin = model.rotary[:tokens].chunk(2, dim=-1)
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def attention(x, layer):
        qkv = (x @ layer.qkv.T).view(tokens, -1, size)
        out = []
        for head in range(heads):
            key = heads + head // queries_per_key
            q, k, v = qkv[:, head], qkv[:, key], qkv[:, key + shape.num_key_value_heads]
            if shape.qk_norm:
                q, k = norm(q, layer.head_norms[0]), norm(k, layer.head_norms[1])
            scores = rotated(q) @ rotated(k).T / size**0.5
            scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
            out.append(scores.softmax(-1) @ v)
        return torch.cat(out, dim=-1) @ layer.output.T

    def feed(x, layer):
        wide = x @ layer.up.T
        if shape.gated_mlp:
            gate, up = wide.chunk(2, dim=-1)
            return (F.silu(gate) * up) @ layer.down.T
        return F.gelu(wide, approximate="tanh") @ layer.down.T

    x = model.embedding[ids]
    if model.position_table is not None:
        x = x + model.position_table[:tokens]
    for layer in model.layers:
        norms = layer.norms
        if len(norms) == 1:
            x = x + attention(norm(x, norms[0]), layer) + feed(norm(x, norms[0]), layer)
            continue
        added = attention(norm(x, norms[0]), layer)
        x = x + (norm(added, norms[1]) if len(norms) > 2 else added)
        added = feed(norm(x, norms[1 if len(norms) == 2 else 2]), layer)
        x = x + (norm(added, norms[3]) if len(norms) == 4 else added)
    return x, norm(x, model.norm) @ model.head.T


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_prompt_equals_a_plain_transformer(changes):
    """Hidden states of all positions, logits and token of the last, for every kind of layer."""
    import torch

    model = build(replace(TINY, **changes))
    ids = torch.randint(TINY.vocab_size, (37,))
    step = model.step([chunk(0, 37, 37)], [[5, 2, 9]], ids)
    expected, logits = plain(model, ids)
    assert relative_error(sum(step.run_layers()), expected) < 1e-5
    assert relative_error(step.logits()[0], logits[-1]) < 1e-5
    assert step().tolist() == [int(logits[-1].argmax())]


def test_a_hybrid_step_continues_what_is_cached():
    """Two requests prefilled before: one decodes, one gets its second chunk; each token as in one go."""
    import torch

    model = build()
    first, second = torch.randint(TINY.vocab_size, (21,)), torch.randint(TINY.vocab_size, (50,))
    pages = [[3, 7], [1, 30, 8, 12]]
    model.step([chunk(0, 20, 20), chunk(0, 19, 50)], pages, torch.cat([first[:20], second[:19]]))()
    step = model.step([decode(21), chunk(19, 31, 50)], pages, torch.cat([first[20:], second[19:]]))
    logits = torch.stack([plain(model, ids)[1][-1] for ids in (first, second)])
    assert relative_error(step.logits(), logits) < 1e-5
    assert step().tolist() == logits.argmax(-1).tolist()


def test_a_listed_batch_has_its_decodes_first():
    """As vLLM orders a step."""
    batch = ListedBatch("b", ((512, 3), (0, 64)), (121, 1))
    assert scheduled_of(batch) == [decode(121), decode(1), chunk(512, 3, 515), chunk(0, 64, 64)]


def test_a_rank_samples_from_the_whole_vocabulary():
    """Its own part has 64 rows, all have 128; ids of others are looked up as zeros."""
    import torch

    model = build(ranks=2)
    step = model.step([decode(1) for _ in range(8)], [[page] for page in range(8)])
    assert model.embedding.shape == model.head.shape == (64, TINY.hidden_size)
    assert model.gathered.shape == (8, 128)
    assert torch.equal(step(), model.gathered.argmax(-1))


def test_contexts_beyond_learned_positions_are_timed_too():
    """The table has 512 rows."""
    model = build(replace(TINY, position_embedding="learned"))
    assert model.step([decode(560)], [list(range(35))])().shape == (1,)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_memory_of_a_model_is_known_before(changes, ranks):
    """Weights and pages, to the byte."""
    model = build(replace(TINY, **changes), ranks)
    room = Room(model.place.shape, 4, 16, "cpu", ranks)
    tensors = [
        *(tensor for layer in model.layers for tensor in (layer.qkv, layer.output, layer.up, layer.down)),
        *(tensor for layer in model.layers for tensor in (*layer.norms, *layer.head_norms)),
        *([model.embedding] if model.head is model.embedding else [model.embedding, model.head]),
        model.norm,
        *([] if model.position_table is None else [model.position_table]),
    ]
    assert room.weight_bytes == 4 * sum(tensor.numel() for tensor in tensors)
    caches = sum(cache.numel() for layer in model.layers for cache in (layer.key_cache, layer.value_cache))
    assert room.page_bytes * model.place.pages == 4 * caches


BATCHES = [
    ListedBatch("small", ((0, 16),), (), 1),
    ListedBatch("large", ((100, 20),), (17, 16), 2),  # 8 + 2 + 1 pages
    ListedBatch("middle", (), (33,), 3),
]


def test_the_cache_holds_the_largest_batch(tmp_path):
    """Each sequence in whole pages."""
    room = Room(TINY, 4, 16, "cpu")
    assert cache_pages(room, BATCHES, 10**9, tmp_path) == (11, BATCHES, {})
    assert cache_pages(room, BATCHES, 10**9, tmp_path, least=12) == (12, BATCHES, {})
    assert [longest(batch) for batch in BATCHES] == [16, 120, 33]
    scheduled = scheduled_of(BATCHES[1])
    assert sum(map(len, share_pages(scheduled, 16, range(11)))) == 11


def test_batches_that_do_not_fit_are_left_out_with_the_reason(tmp_path):
    """A byte less than the largest needs: the cache is that of the next, and the others stay in their order."""
    room = Room(TINY, 4, 16, "cpu")
    enough = room.fixed_bytes(BATCHES) + 11 * room.page_bytes + room.step_bytes(BATCHES[1])
    assert cache_pages(room, BATCHES, enough, tmp_path)[0] == 11
    pages, fitting, left_out = cache_pages(room, BATCHES, enough - 1, tmp_path)
    assert (pages, [batch.id for batch in fitting]) == (3, ["small", "middle"])
    assert list(left_out) == ["large"]
    assert left_out["large"].startswith("too little memory: it needs 0.0 GiB of KV cache and ")


def test_where_nothing_fits_the_smallest_batch_is_named(tmp_path):
    """A byte less than it needs: line and id; with no room for the weights, or for --verify, the model."""
    room = Room(TINY, 4, 16, "cpu")
    enough = room.fixed_bytes(BATCHES[:1]) + room.page_bytes + room.step_bytes(BATCHES[0])
    assert list(cache_pages(room, BATCHES[:2], enough, tmp_path)[2]) == ["large"]
    with pytest.raises(InputError, match=r'b.jsonl, line 1, batch "small": too little memory: .* no batch is smaller'):
        cache_pages(room, BATCHES[:2], enough - 1, tmp_path / "b.jsonl")
    with pytest.raises(InputError, match="--model: too little memory: the weights of tiny"):
        cache_pages(room, BATCHES, room.weight_bytes, tmp_path)
    with pytest.raises(InputError, match="--model: too little memory"):
        cache_pages(room, BATCHES, enough, tmp_path, least=50)
