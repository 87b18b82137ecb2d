"""Numbers that a rewritten page no longer has."""

import pytest

from tools.lost_numbers import numbers, plain, unexplained


@pytest.mark.parametrize(
    ("spelt", "plainly"),
    [
        ("1,000", "1000"),
        ("0.30", "0.3"),
        (".3", "0.3"),
        ("97.0", "97"),
        ("1e-3", "0.001"),
        ("200", "200"),
        ("4.2.3", "4.2.3"),
    ],
)
def test_spellings_of_a_number_are_one(spelt, plainly):
    assert plain(spelt) == plainly


def test_numbers_of_a_page_leave_out_numbering_links_and_names():
    page = """\
1. Take [page 2](x.md#item-3) in `run4`: 1,234,567 rows, 56.7% (.8), -9e-10.
  11. The seeds 12,13; `--rate=0.05,window=20`.
"""
    assert list(numbers(page)) == [
        *("2", "1234567", "56.7", "0.8", "0.0000000009"),
        *("12", "13", "0.05", "20"),
    ]
    assert numbers("There were 40 of\n  50 clients.")["40"] == "There were 40 of 50 clients."


def test_a_number_needs_a_page_or_a_reason():
    old = {"a.md": "1,000 rows and 2.50 points, 7 runs", "b.md": "2.5 points"}
    dropped = {"a.md": {"2.5": "measured again", "7": "idle"}, "c.md": {"1": "no such page"}}
    assert list(unexplained(old, "1000 rows; 7", dropped)) == [
        "a.md: 7 needs no reason: it is not lost",
        "b.md: 2.5 is lost: ... 2.5 points ...",
        "c.md: there was no such page",
    ]
