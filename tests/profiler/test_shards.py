"""What `profile-gpu --tp` and `--dtype` measure: one rank's shapes, in the type asked for, and every kind of layer."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from profiler import device, run
from profiler.attention import choose_attention
from profiler.cli import default_out, main
from profiler.clocks import ClockSampler
from profiler.fused import TorchFused, check_fused, relative_error
from profiler.grid import Point
from profiler.operators import BUILDERS, Bench, embed, needed_bytes, sample_greedily
from profiler.paged import check_attention
from simulator.cost_table import read_table
from simulator.errors import InputError
from simulator.models import load_model
from simulator.table_rows import OPERATORS
from tests.profiler.machines import TINY, needs_gpu, needs_torch, write_tiny_model

pytestmark = needs_torch

UNGATED = replace(TINY, name="ungated", gated_mlp=False, position_embedding="learned", tie_word_embeddings=True)
SMALL = ["--device", "cpu", "--max-tokens", "66", "--max-kv-tokens", "512", "--quick", "--quiet"]


@pytest.fixture
def profile(tmp_path):
    """Runs `profile-gpu` on the tiny model, or with `keys` added to its YAML; returns the table."""
    model = write_tiny_model(tmp_path)

    def run_it(*options, keys=""):
        out = tmp_path / "table.csv"
        model.write_text(model.read_text(encoding="utf-8") + keys, encoding="utf-8")
        result = CliRunner().invoke(main, ["--model", str(model), "--out", str(out), *SMALL, *options])
        assert result.exit_code == 0, result.output
        return read_table(out)

    return run_it


def _bench(shape, ranks=1, fused=None):
    import torch

    torch.manual_seed(0)
    return Bench(shape, "cpu", torch.float32, fused or TorchFused(), max_tokens=32, l2_bytes=0, tensor_parallel=ranks)


class Recording(TorchFused):
    """Names each call of an elementwise function."""

    def __init__(self):
        self.names = []

    def __getattribute__(self, name):
        if name in ("add_rms_norm", "rotary_", "write_kv_", "silu_mul", "gelu", "head_norm_"):
            self.names.append(name)
        return super().__getattribute__(name)


def test_a_table_of_one_of_two_ranks(profile):
    """It describes the whole model and the degree, says what is missing, and has every operator."""
    table = profile("--tp", "2")
    assert (table.metadata.model, table.metadata.tensor_parallel) == (TINY, 2)
    assert set(table.rows["operator"]) == {*OPERATORS} - {"whole_layer"}
    assert any("one of 2 ranks" in note and "all-reduces" in note for note in table.metadata.notes)
    assert "--tensor-parallel 2" in table.metadata.command


def test_one_rank_s_shapes_are_measured(tmp_path):
    """Heads, MLP and vocabulary of the shard reach every operator and the attention kernel."""
    options = run.Options(model="", out=tmp_path / "t.csv", device="cpu", tensor_parallel=2, max_kv_tokens=512)
    setup = run.prepare(options, TINY)
    with ClockSampler("cpu") as clocks:
        workshop = run._workshop(options, setup, clocks)
    assert setup.shape == workshop.bench.shape == TINY.shard(2)
    assert workshop.bench.tensor_parallel == 2
    attention = workshop.make_attention()
    assert attention.key_cache.shape[2] == 1
    assert attention.calls(Point("attention", decodes=2, decode_context=5))[0]().shape == (2, 3, TINY.head_dim)


def test_weights_of_a_rank():
    """QKV and the first product of the MLP by output, the output projection and the second by input features."""
    bench = _bench(TINY.shard(2), ranks=2)
    assert BUILDERS["qkv_proj"](bench).weights[0].shape == (TINY.qkv_features // 2, TINY.hidden_size)
    assert BUILDERS["o_proj"](bench).weights[0].shape == (TINY.hidden_size, 3 * TINY.head_dim)
    up, down = BUILDERS["mlp"](bench).weights[0]
    assert up.shape == (2 * TINY.intermediate_size // 2, TINY.hidden_size)
    assert down.shape == (TINY.hidden_size, TINY.intermediate_size // 2)
    assert BUILDERS["lm_head"](bench).heads[0].shape == (64, TINY.hidden_size)


def test_a_part_of_the_vocabulary_gives_its_rows_and_zeros():
    """The parts of all ranks add up to the whole lookup."""
    import torch

    table, ids = torch.randn(12, 5), torch.tensor([0, 3, 11, 4, 7, 3])
    whole = embed(ids, table)
    assert torch.equal(whole, table[ids])
    parts = [embed(ids, table[first : first + 4], first) for first in (0, 4, 8)]
    assert torch.equal(sum(parts), whole)
    assert parts[1].count_nonzero() == 2 * 5


def test_a_rank_samples_from_the_logits_of_all():
    """Its own part is computed; the most likely token may be another's."""
    import torch

    hidden, residual, weight, head = torch.randn(6, 8), torch.randn(6, 8), torch.rand(8), torch.randn(20, 8)
    inputs = hidden, residual, torch.tensor([1, 5]), weight
    whole = sample_greedily(*inputs, head, TorchFused())
    normed = torch.nn.functional.rms_norm(hidden + residual, (8,), weight, 1e-5)
    gathered = normed[[1, 5]] @ head.T
    assert torch.equal(sample_greedily(*inputs, head[:10], TorchFused(), gathered), whole)


def test_the_lm_head_of_a_rank_reads_the_whole_vocabulary():
    """The tokens that come out are spread over all of it, 128 here, though its own part has 64."""
    operator = BUILDERS["lm_head"](_bench(TINY.shard(2), ranks=2))
    sampled = operator.calls(Point("lm_head", sequences=32))[0]()
    assert sampled.shape == (32,)
    assert 64 <= int(sampled.max()) < 128


@pytest.mark.parametrize("shape", [UNGATED, UNGATED.shard(2)], ids=["whole", "shard"])
def test_learned_positions_are_looked_up_with_the_tokens(shape):
    """The embedding's result is the sum of both rows."""
    ranks = TINY.num_attention_heads // shape.num_attention_heads
    operator = BUILDERS["embedding"](_bench(shape, ranks))
    assert operator.position_table.shape == (TINY.max_position_embeddings, TINY.hidden_size)
    actual = operator.calls(Point("embedding", tokens=7))[0]()
    first = None if ranks == 1 else 0
    tokens = embed(operator.ids[0][:7], operator.table, first)
    assert relative_error(actual, tokens + operator.position_table[operator.positions[:7]]) < 1e-6


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["add_rms_norm", "rotary_", "write_kv_", "add_rms_norm"]),
        ({"position_embedding": "learned"}, ["add_rms_norm", "write_kv_", "add_rms_norm"]),
        ({"position_embedding": "alibi"}, ["add_rms_norm", "write_kv_", "add_rms_norm"]),
        ({"norms_per_layer": 1}, ["add_rms_norm", "rotary_", "write_kv_"]),
        ({"norms_per_layer": 4}, [*["add_rms_norm"] * 2, "rotary_", "write_kv_", *["add_rms_norm"] * 2]),
        ({"qk_norm": True}, ["add_rms_norm", "head_norm_", "head_norm_", "rotary_", "write_kv_", "add_rms_norm"]),
    ],
)
def test_elementwise_work_of_each_kind_of_layer(keys, expected):
    """Only what the model has."""
    fused = Recording()
    operator = BUILDERS["elementwise"](_bench(replace(TINY, **keys), fused=fused))
    operator.calls(Point("elementwise", tokens=3))[0]()
    assert fused.names == expected


@pytest.mark.parametrize(("gated", "expected"), [(True, ["silu_mul"]), (False, ["gelu"])])
def test_the_activation_is_fused(gated, expected):
    """One kernel between the two products, with a gate and without."""
    fused = Recording()
    operator = BUILDERS["mlp"](_bench(replace(TINY, gated_mlp=gated), fused=fused))
    assert operator.calls(Point("mlp", tokens=3))[0]().shape == (3, TINY.hidden_size)
    assert fused.names == expected


def test_norm_by_head():
    """Each head of the range by itself; the others stay as they were."""
    import torch

    qkv, weight = torch.randn(5, 6 * 8), torch.rand(8)
    actual = qkv.clone()
    TorchFused().head_norm_(actual, 2, 3, weight)
    heads = qkv.view(5, 6, 8)
    expected = torch.cat(
        [heads[:, :2], torch.nn.functional.rms_norm(heads[:, 2:5], (8,), weight, 1e-5), heads[:, 5:]], 1
    )
    torch.testing.assert_close(actual.view(5, 6, 8), expected)


@pytest.mark.parametrize("name", ["gelu", "head_norm_"])
def test_the_check_before_timing_covers_them(name):
    """A kernel that is off by a twentieth is found."""
    import torch

    class Wrong(TorchFused):
        def gelu(self, up):
            return super().gelu(up) * (1.05 if name == "gelu" else 1)

        def head_norm_(self, qkv, first, heads, weight, eps=1e-5):
            super().head_norm_(qkv, first, heads, weight * (1.05 if name == "head_norm_" else 1), eps)

    assert check_fused(Wrong(), "cpu", torch.float32) > 0.01


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_model_without_gate_and_rotary_embedding(profile, ranks):
    """GPT's layer, whole and as a shard, gives a whole table."""
    table = profile("--tp", ranks, keys="gated_mlp: false\nposition_embedding: learned\ntie_word_embeddings: true\n")
    assert table.metadata.model == replace(UNGATED, name="tiny")
    assert set(table.rows["operator"]) == {*OPERATORS} - {"whole_layer"}


def test_multi_head_attention_of_a_shard():
    """As many KV heads as query heads, an equal part on each rank, attend correctly."""
    import torch

    shape = replace(TINY, num_key_value_heads=TINY.num_attention_heads).shard(2)
    assert shape.num_key_value_heads == shape.num_attention_heads == 3
    assert check_attention(choose_attention("torch", "cpu"), shape, "cpu", torch.float32) < 1e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_type_is_measured_and_recorded(profile, dtype):
    """On a CPU too; attention and elementwise work pass their checks in it."""
    table = profile("--dtype", dtype)
    assert table.metadata.dtype == dtype
    assert f"--dtype {dtype}" in table.metadata.command


def test_the_type_reaches_weights_and_cache(tmp_path):
    """And the attention backend."""
    import torch

    options = run.Options(model="", out=tmp_path / "t.csv", device="cpu", dtype="float16", max_kv_tokens=512)
    setup = run.prepare(options, TINY)
    with ClockSampler("cpu") as clocks:
        workshop = run._workshop(options, setup, clocks)
    assert workshop.bench.weight(2, 2).dtype == workshop.make_attention().key_cache.dtype == torch.float16


def test_types_of_a_gpu():
    """bfloat16 unless float16 is asked for; float32 is refused, the kernels have none."""
    import torch

    assert device.dtype_of("cuda") == torch.bfloat16
    assert device.dtype_of("cuda", "float16") == torch.float16
    assert device.dtype_of("cpu") == torch.float32
    with pytest.raises(InputError, match="--dtype: float32 is for --device cpu"):
        device.dtype_of("cuda", "float32")


def test_tables_of_different_types_or_ranks_are_not_mixed(profile):
    """--resume names what differs."""
    profile("--dtype", "float32")
    for options, key in ((("--dtype", "bfloat16"), "dtype"), (("--tp", "2"), "tensor_parallel")):
        with pytest.raises(AssertionError, match=rf"{key}: --resume would mix"):
            profile("--resume", *options)


def test_a_model_that_does_not_divide(tmp_path):
    """Exit status 2 and the degrees that are possible."""
    model = write_tiny_model(tmp_path)
    result = CliRunner().invoke(main, ["--model", str(model), "--out", str(tmp_path / "t.csv"), *SMALL, "--tp", "4"])
    assert result.exit_code == 2
    assert "--tp: tiny does not divide over 4 ranks (6 attention heads); it does over 1, 2" in result.output
    assert result.output.count("\n") == 1


def test_what_is_not_priced_is_said_before(tmp_path):
    """A note a sentence, on standard error."""
    model = write_tiny_model(tmp_path)
    model.write_text(model.read_text(encoding="utf-8") + "approximations: [its window is priced as full]\n")
    small = [option for option in SMALL if option != "--quiet"]
    result = CliRunner().invoke(main, ["--model", str(model), "--out", str(tmp_path / "t.csv"), *small])
    assert "profile-gpu: note: its window is priced as full" in result.output


@pytest.mark.parametrize(("ranks", "name"), [(1, "llama-13b.csv"), (2, "llama-13b@tp2.csv")])
def test_the_table_of_a_shard_is_named_after_it(ranks, name):
    """As tables that ship are."""
    assert default_out("llama-13b", {"tensor_parallel": ranks}) == name


def test_memory_of_a_rank_counts_the_logits_of_all():
    """Two ranks of Llama 3.1 8B: half the weights, and 1024 rows of the whole vocabulary once more."""
    shape, mib = load_model("llama-3.1-8b"), 2**20
    alone = needed_bytes(shape.shard(2), 8192, 60 * mib, 2)
    assert needed_bytes(shape.shard(2), 8192, 60 * mib, 2, 2) - alone == 1024 * 128256 * 2
    assert alone < needed_bytes(shape, 8192, 60 * mib, 2)


@needs_gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", ["fa2", "fa3", "torch"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_gpu_kernels_on_a_shard_in_both_types(kernel, dtype, ranks):
    """Each kernel that is installed, at the head counts of one rank of Llama 3.1 8B."""
    kind = device.dtype_of("cuda", dtype)
    try:
        backend = choose_attention(kernel, "cuda", kind)
    except InputError as error:
        pytest.skip(str(error))
    try:
        error = check_attention(backend, load_model("llama-3.1-8b").shard(ranks), "cuda", kind)
    except RuntimeError as refusal:  # a build with some types only
        if dtype == "bfloat16" or "bf16" not in str(refusal):
            raise
        pytest.skip(str(refusal))
    assert error < 1e-2


@needs_gpu
def test_triton_kernels_in_float16():
    """All of them, GELU and the norm by head included."""
    import torch

    from profiler.fused import choose_fused

    assert check_fused(choose_fused("cuda")[0], "cuda", torch.float16) < 1e-2
