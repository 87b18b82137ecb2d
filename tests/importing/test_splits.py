"""Splits: their fractions, units that stay together, and which inputs change them."""

import random
from collections import Counter

import pytest

from tests.support import golden
from tests.support.imports import job, stored_counts, stored_splits
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.source import ReadLog, SourceExample, rows_of
from tff_agnostic.importing.splits import Splits, moves, parse_shares, split_sizes, unit_strata

_SHARES = {"train": 0.7, "heldout": 0.2, "test": 0.1}


def _example(client: int, number: int, split: "str | None" = None) -> SourceExample:
    record = Record(f"c{client}", "d", {"tokens": "a"}, split)
    return SourceExample(record, f"p{client}#{number}", f"g{client // 5}")


_EXAMPLES = [_example(client, number) for client in range(2000) for number in range(3)]


def _assigned(examples, by: str, seed: int = 0) -> dict[str, str]:
    names, _ = Splits(_SHARES, by, seed).assign(rows_of(examples))
    return dict(zip((example.place for example in examples), names.to_pylist()))


@pytest.mark.parametrize("by", ["client", "group", "example"])
def test_splits_keep_units_together_and_have_given_fractions(by):
    whole = _assigned(_EXAMPLES, by)
    # An example's split depends neither on the order of the examples nor on other examples.
    assert _assigned(_EXAMPLES[::-1], by) == whole
    assert _assigned(_EXAMPLES[1::7], by).items() <= whole.items()
    splits: dict[str, set[str]] = {}
    for e in _EXAMPLES:
        unit = {"client": e.record.client, "group": str(e.group), "example": e.place}[by]
        splits.setdefault(unit, set()).add(whole[e.place])
    assert all(len(names) == 1 for names in splits.values())
    counts = Counter(whole.values())
    for name, share in _SHARES.items():
        # Five standard deviations for 400 groups, the largest units.
        slack = 5 * (share * (1 - share) / 400) ** 0.5
        assert abs(counts[name] / len(_EXAMPLES) - share) < slack
    assert _assigned(_EXAMPLES, by, 1) != whole


def test_splits_in_the_source_are_kept():
    own_rows = [_example(client, 0, "test" if client % 2 else "train") for client in range(100)]
    rows = rows_of(own_rows)
    names, units = Splits(_SHARES, "client", 0).assign(rows)
    assert names.equals(rows.split) and units.null_count == len(own_rows)
    names, units = Splits({"train": 0.5, "heldout": 0.5}, "client", 0, {"split"}).assign(rows)
    result = {*zip(rows.split.to_pylist(), names.to_pylist(), units.is_null().to_pylist())}
    assert result == {
        ("train", "train", False),
        ("train", "heldout", False),
        ("test", "test", True),
    }
    with pytest.raises(UserError, match="as the source has its own split test"):
        Splits(_SHARES, "client", 0, {"split"}).assign(rows)
    for name in ("split_by", "stratify", "min_per_split"):
        with pytest.raises(UserError, match=f"{name}: expected no value without split"):
            Splits(_SHARES, "client", 0, {name}).assign(rows)


@golden.values
def test_invalid_shares_raise(case):
    result = golden.refusal(parse_shares, case)
    assert result.startswith("split: ")
    return result


# --- Splits have equal fractions in every domain


_STRATUM_SHARES = {"train": 0.8, "heldout": 0.1, "test": 0.1}
_ROW_OPTIONS = {"client_column": "who", "domain_column": "where", "text_column": "text"}


@pytest.mark.parametrize(
    ("count", "minimum", "expected"),
    [
        # expected: sizes of (train, heldout, test), rounded and at least `minimum` each.
        (100, 0, (80, 10, 10)),
        (104, 0, (84, 10, 10)),
        (105, 0, (83, 11, 11)),
        (1, 1, (1, 0, 0)),
        (2, 1, (1, 0, 1)),
        (3, 1, (1, 1, 1)),
        (4, 1, (2, 1, 1)),
        (4, 0, (4, 0, 0)),
        (20, 5, (10, 5, 5)),
        (8, 5, (1, 2, 5)),
        (5, 5, (1, 0, 4)),
    ],
)
def test_split_sizes_are_rounded_shares(count, minimum, expected):
    assert tuple(split_sizes(count, _STRATUM_SHARES, minimum).values()) == expected
    assert list(split_sizes(count, _STRATUM_SHARES, minimum)) == list(_STRATUM_SHARES)


def test_split_sizes_omit_absent_splits():
    assert split_sizes(10, {"test": 0.3, "train": 0.7}, 1) == {"test": 3, "train": 7}


def test_strata_are_the_most_frequent_domains():
    units = [(-5, "a", 3), (-5, "b", 4), (-1, "b", 9), (0, "a", 2), (0, "c", 2), (7, "d", 1)]
    strata = unit_strata(units)
    assert {name: s.units.tolist() for name, s in strata.items()} == {
        "a": [0],
        "b": [-5, -1],
        "d": [7],
    }
    assert (strata["b"].examples, strata["b"].largest) == (16, 9)


def test_splits_by_rank_move_few_units():
    draw = random.Random(0)
    units = sorted(draw.randrange(-(2**63), 2**63) for _ in range(1000))
    strata = unit_strata((unit, "ab"[unit % 2], 1) for unit in units)
    moved = moves(strata, _STRATUM_SHARES, 1)
    for stratum in strata.values():
        names = []
        for unit in stratum.units.tolist():
            fraction = (unit + 2**63) / 2**64
            by_hash = "train" if fraction < 0.8 else "heldout" if fraction < 0.9 else "test"
            names.append(moved.get(unit, by_hash))
        sizes = split_sizes(len(names), _STRATUM_SHARES, 1)
        assert names == [name for name, size in sizes.items() for _ in range(size)]
    # Splits by rank and by hash differ in about 3 * sqrt(1000 * 0.8 * 0.2) of 1000 units.
    assert 0 < len(moved) < 100


def test_splits_by_rank_reach_every_domain(tmp_path):
    home = ["a", "b", "b", *["c"] * 20]
    path, store = tmp_path / "rows.csv", tmp_path / "s.sqlite"
    rows = [f"u{k},{domain},{'word ' * 30}" for k, domain in enumerate(home)]
    path.write_text("\n".join(["who,where,text", *rows]) + "\n")
    report = job("csv", path, store, **_ROW_OPTIONS).run(ReadLog())
    counts = Counter((domain, split) for _, domain, split in stored_counts(store))
    for domain, count in Counter(home).items():
        for split, size in split_sizes(count, _STRATUM_SHARES, 1).items():
            assert counts[domain, split] == size
    remarks = {(r.kind, r.figures.get("split")): r.figures.get("domains") for r in report.remarks}
    # Only a domain with one client lacks a test client.
    assert remarks["domains_without_examples", "test"] == ["a"]
    assert ("domains_without_examples", "train") not in remarks
    assert ("words_cut", None) in remarks


@pytest.mark.nightly
def test_new_clients_change_few_splits_of_others(tmp_path):
    draw = random.Random(1)
    domains = [f"d{k:02d}" for k in range(30)]
    home = domains + draw.choices(domains, [1 / (k + 1) for k in range(30)], k=370)
    rows = [(k, f"u{k},{d},word") for k, d in enumerate(home) for _ in range(draw.randint(1, 40))]
    draw.shuffle(rows)
    path, result = tmp_path / "rows.csv", []
    for count in (400, 360):
        kept = [row for client, row in rows if client < count]
        path.write_text("\n".join(["who,where,text", *kept]) + "\n")
        store = tmp_path / f"{count}.sqlite"
        job("csv", path, store, **_ROW_OPTIONS).run(ReadLog())
        result.append(stored_splits(store))
    new, old = result
    assert (len(new), len(old)) == (400, 360)
    moved = [client for client, split in old.items() if new[client] != split]
    assert len(moved) <= len(old) / 20


def test_domain_with_one_dominant_client_is_reported(tmp_path):
    rows = [f"u{k},x,a b" for k in range(5)] + ["big,x,a b"] * 10 + ["v,y,a b", "w,y,c"]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["who,where,text", *rows]) + "\n")
    options = {**_ROW_OPTIONS, "min_domain_examples": 1}
    report = job("csv", path, tmp_path / "s.sqlite", **options).run(ReadLog())
    (remark,) = [r for r in report.remarks if r.kind == "large_units"]
    start = "In 1 of 2 domains a single client has over half of the examples"
    assert remark.text.startswith(start) and ": x; split_by=example" in remark.text
