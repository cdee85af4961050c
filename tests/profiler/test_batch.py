"""The arrays of a step: the example worked by hand, and shuffled pages against one contiguous sequence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.batch import Scheduled, VarlenBatch, chunk, decode, pages_of, share_pages


def _build(scheduled, page_size=16, order=None):
    pages = sum(pages_of(scheduled, page_size))
    return VarlenBatch.build(scheduled, page_size, share_pages(scheduled, page_size, order or range(pages)))


def test_two_decodes_and_a_chunk_of_a_long_prompt():
    """Requests with (120 history + 1), (45 + 1) and (8192 + 1808) tokens."""
    batch = _build([decode(121), decode(46), chunk(8192, 1808, prompt_tokens=10000)])
    assert batch.cu_seqlens_q.tolist() == [0, 1, 2, 1810]
    assert batch.cu_seqlens_k.tolist() == [0, 121, 167, 10167]
    assert batch.logits_indices.tolist() == [0, 1, 1809]
    assert batch.lengths.tolist() == [121, 46, 10000]
    assert (batch.tokens, batch.max_seqlen_q, batch.max_seqlen_k) == (1810, 1808, 10000)
    assert batch.positions[:4].tolist() == [120, 45, 8192, 8193]


def test_kernels_get_the_integer_widths_that_they_demand():
    """Lengths and page numbers are int32; slots and positions int64."""
    batch = _build([decode(5), chunk(0, 3, 9)])
    assert {batch.cu_seqlens_q.dtype, batch.cu_seqlens_k.dtype, batch.block_table.dtype} == {np.dtype(np.int32)}
    assert {batch.lengths.dtype, batch.logits_indices.dtype} == {np.dtype(np.int32)}
    assert {batch.slot_mapping.dtype, batch.positions.dtype} == {np.dtype(np.int64)}


def test_only_decodes_and_prompts_that_end_emit_a_token():
    """Every request has a last position, but a prompt's earlier chunk yields nothing from it."""
    batch = _build([chunk(0, 512, 1024), decode(9), chunk(512, 512, 1024), chunk(0, 7, 7)])
    assert batch.emitting == [1, 2, 3]
    assert len(batch.logits_indices) == 4


def test_block_table_is_padded_to_the_longest_request():
    """One page and three pages: the short row ends in zeros."""
    batch = _build([decode(3), chunk(0, 40, 40)], order=[7, 2, 9, 4])
    assert batch.block_table.tolist() == [[7, 0, 0], [2, 9, 4]]
    assert batch.slot_mapping[:3].tolist() == [7 * 16 + 2, 2 * 16, 2 * 16 + 1]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
)
def test_shuffled_pages_read_back_as_contiguous_sequences(lengths, page_size, seed):
    """Written by slot in two steps, read through the block table, each request finds its own tokens."""
    before = [Scheduled(0, max(context, 1)) for context, _ in lengths]
    after = [Scheduled(one.new, new) for one, (_, new) in zip(before, lengths, strict=True)]
    count = sum(pages_of(after, page_size)) + 3
    pages = share_pages(after, page_size, np.random.default_rng(seed).permutation(count).tolist())
    cache = np.full(count * page_size, -1)
    for step in (before, after):
        batch = VarlenBatch.build(step, page_size, pages)
        owners = np.repeat(np.arange(len(step)), [one.new for one in step])
        cache[batch.slot_mapping] = owners * 1000 + batch.positions
    for owner, (row, length) in enumerate(zip(batch.block_table, batch.lengths, strict=True)):
        read = cache.reshape(count, page_size)[row[: -(-length // page_size)]].ravel()[:length]
        assert read.tolist() == [owner * 1000 + position for position in range(length)]


@pytest.mark.parametrize(
    ("scheduled", "pages", "message"),
    [
        ([], [], "0 requests"),
        ([decode(17)], [[0]], "17 tokens need 2 pages of 16"),
        ([decode(3), decode(3)], [[5], [5]], "write to one page"),
    ],
)
def test_impossible_batches_are_refused(scheduled, pages, message):
    """No request, too few pages, and two requests that would overwrite each other."""
    with pytest.raises(ValueError, match=message):
        VarlenBatch.build(scheduled, 16, pages)


def test_a_chunk_ends_within_its_prompt():
    """A scheduler that gives more than the prompt has left is wrong."""
    with pytest.raises(ValueError, match=r"8 \+ 5 tokens of a prompt of 12"):
        chunk(8, 5, 12)
    with pytest.raises(ValueError, match="new >= 1"):
        Scheduled(4, 0)


def test_running_out_of_pages_says_by_how_much():
    """Three pages are needed and two are free."""
    with pytest.raises(ValueError, match="needs 3 pages; 2 are free"):
        share_pages([decode(20), decode(1)], 16, [4, 8])
