"""Ids of words, padding and sentence ends."""

import pytest

from tff_agnostic.base.text_ids import TokenIds


def test_ids_equal_tffs_stack_overflow_baseline():
    ids = TokenIds(10_000)
    assert (ids.pad, ids.oov, ids.bos, ids.eos, ids.num_ids) == (0, 10_001, 10_002, 10_003, 10_004)


@pytest.mark.parametrize("size", [0, -3])
def test_rejects_empty_vocabulary(size):
    with pytest.raises(ValueError, match=f"expected at least 1 word, found {size}"):
        TokenIds(size)
