"""Splits: shares, what is kept together, and what they depend on."""

from collections import Counter

import pytest

from tests import golden
from tff_agnostic.data.store_format import Record
from tff_agnostic.errors import UserError
from tff_agnostic.importing.source import SourceExample
from tff_agnostic.importing.splits import Splits, parse_shares

_SHARES = {"train": 0.7, "heldout": 0.2, "test": 0.1}


def _example(client: int, number: int, split: "str | None" = None) -> SourceExample:
    record = Record(f"c{client}", "d", {"tokens": "a"}, split)
    return SourceExample(record, f"p{client}#{number}", f"g{client // 5}")


_EXAMPLES = [_example(client, number) for client in range(2000) for number in range(3)]


def _assigned(examples, by: str, seed: int = 0) -> dict[str, str]:
    splits = Splits(_SHARES, by, seed)
    return {example.place: splits.split_of(example)[0] for example in examples}


@pytest.mark.parametrize("by", ["client", "group", "example"])
def test_the_order_of_the_input_changes_nothing(by):
    assert _assigned(_EXAMPLES, by) == _assigned(_EXAMPLES[::-1], by)


@pytest.mark.parametrize("by", ["client", "group", "example"])
def test_what_else_is_in_the_input_changes_nothing(by):
    whole = _assigned(_EXAMPLES, by)
    assert _assigned(_EXAMPLES[1::7], by).items() <= whole.items()


@pytest.mark.parametrize("by", ["client", "group", "example"])
def test_shares_are_kept_to(by):
    counts = Counter(_assigned(_EXAMPLES, by).values())
    for name, share in _SHARES.items():
        # Five standard deviations, were groups as large as they are drawn on their own.
        slack = 5 * (share * (1 - share) / 400) ** 0.5
        assert abs(counts[name] / len(_EXAMPLES) - share) < slack


def test_what_is_kept_together():
    for by, key in (("client", "client"), ("group", "group")):
        found: dict[str, set[str]] = {}
        splits = Splits(_SHARES, by, 0)
        for example in _EXAMPLES:
            name = example.group if key == "group" else example.record.client
            found.setdefault(str(name), set()).add(splits.split_of(example)[0])
        assert all(len(names) == 1 for names in found.values())
    by_example = _assigned(_EXAMPLES, "example")
    assert any(by_example[f"p{k}#0"] != by_example[f"p{k}#1"] for k in range(2000))


def test_seeds_differ():
    assert _assigned(_EXAMPLES, "client", 0) != _assigned(_EXAMPLES, "client", 1)


def test_the_sources_own_splits():
    own = [_example(client, 0, "test" if client % 2 else "train") for client in range(100)]
    kept = Splits(_SHARES, "client", 0)
    assert all(kept.split_of(example) == (example.record.split, None) for example in own)
    divided = Splits({"train": 0.5, "heldout": 0.5}, "client", 0, {"split"})
    found = Counter((example.record.split, divided.split_of(example)[0]) for example in own)
    assert set(found) == {("train", "train"), ("train", "heldout"), ("test", "test")}
    with pytest.raises(UserError, match="the source has a split test of its own; expected sha"):
        Splits(_SHARES, "client", 0, {"split"}).split_of(own[1])
    for name in ("split_by", "stratify", "min_per_split"):
        with pytest.raises(UserError, match=f"--{name} has no effect without --split"):
            Splits(_SHARES, "client", 0, {name}).split_of(own[0])


def test_shares_from_text():
    assert parse_shares(["train:0.8", "test:0.2"]) == {"train": 0.8, "test": 0.2}
    assert parse_shares(["train:1"]) == {"train": 1}


@golden.values
def test_shares_that_are_none(case):
    found = golden.refusal(parse_shares, case)
    assert found.startswith(f"--split={','.join(case)}: ")
    return found
