"""The report: counts, overlap, skewness, what was left out."""

import json
import random
from pathlib import Path

import pytest

from tests.importing.harness import job
from tff_agnostic.importing.report import ImportReport, skewness
from tff_agnostic.importing.source import ReadLog

_ROWS = [
    *("a,x", "a,x", "a,y", "b,x", "b,y", "b,z", "c,z", "d,x"),
    *("d,", ",x", "e,"),
]


def _report(folder: Path, rows: list[str]) -> ImportReport:
    path = folder / "rows.csv"
    path.write_text("\n".join(["who,where,text", *(f"{row},one two one" for row in rows)]) + "\n")
    return job(
        "csv",
        path,
        folder / "s.sqlite",
        client_column="who",
        domain_column="where",
        text_column="text",
        split=("train:1",),
        min_domain_examples=4,
        vocabulary_size=1,
    ).run(ReadLog(skip_bad=True))


def test_a_report_in_full(tmp_path):
    report = _report(tmp_path, _ROWS)
    assert report.to_json() == {
        "store": str(tmp_path / "s.sqlite"),
        "format": "csv",
        "records": 11,
        "splits": {
            "train": {
                "clients": 4,
                "examples": 8,
                "domains": {
                    "x": {"clients": 3, "examples": 4},
                    "y": {"clients": 2, "examples": 2},
                    "z": {"clients": 2, "examples": 2},
                },
                "clients_by_number_of_domains": {"1": 2, "2": 1, "3": 1},
                "clients_in_both": [
                    {"domains": ["x", "y"], "clients": 2},
                    {"domains": ["x", "z"], "clients": 1},
                    {"domains": ["y", "z"], "clients": 1},
                ],
            }
        },
        "skipped": {"empty where": 2, "empty who": 1},
        "clients_without_examples": 1,
        "skewness": {"value": 4.0, "rarest": "y", "num_examples": 2, "num_domains": 3},
        "vocabulary": {
            "size": 1,
            "different": 2,
            "coverage": 16 / 24,
            "rarest_count": 16,
            "max_undercount": 0,
            "unknown": 0,
        },
        "categories": {},
        "missing": {},
        "client_sizes": dict(count=4, total=8, median=1, most=3, nearly_all=3, largest=3),
        "sentence_lengths": dict(count=8, total=24, median=3, most=3, nearly_all=3, largest=3),
        "remarks": [
            {
                "kind": "small_domains",
                "text": "2 of 3 domains have fewer than 4 examples in train: y (2), z (2); their "
                "weight is learnt of few.",
                "split": "train",
                "fewest": 4,
                "domains": {"y": 2, "z": 2},
            },
        ],
    }
    json.dumps(report.to_json())


def test_a_report_for_people(tmp_path):
    lines = [" ".join(line.split()) for line in _report(tmp_path, _ROWS).text().splitlines()]
    for line in (
        "split domain clients examples of the split of the domain",
        "train x 3 4 50.0% 100.0%",
        "train all 4 8 100.0%",
        "4 clients of train have 8 examples: half of them at most 1, nine in ten 3, 99% 3, the "
        "largest 3.",
        "8 sentences of train have 24 words: half of them at most 3, nine in ten 3, 99% 3, the "
        "largest 3.",
        "Note: 2 of 3 domains have fewer than 4 examples in train: y (2), z (2); their weight is "
        "learnt of few.",
        "2 of the 4 clients of train have examples of more than one domain.",
        "x 3 2 1",
        "y 2 2 1",
        "z 1 1 2",
        "Left out, of 11 records:",
        "empty where 2",
        "clients without a kept example 1",
        "Vocabulary: 1 of 2 words of the training clients, 66.7% of their text; the rarest "
        "has a count of 16.",
    ):
        assert line in lines
    skewed = lines[-3]
    assert skewed.startswith(
        "Skewness s(Lambda || m) on the training split: 4.0; 3 domains of equal size would have 3. "
    )
    assert "only as good as the 2 examples of y make it" in skewed


def test_one_domain_has_no_overlap(tmp_path):
    text = _report(tmp_path, ["a,x", "b,x"]).text()
    assert "more than one domain" not in text
    assert "\n\nThere is one domain, x: nothing to weigh against one another.\n" in text
    assert "Left out" not in text


def test_many_domains_have_no_matrix(tmp_path):
    rows = [f"a,d{k:02d}" for k in range(20)]
    report = _report(tmp_path, rows)
    assert "Clients of train with examples of both domains" not in report.text()
    assert len(report.to_json()["splits"]["train"]["clients_in_both"]) == 190


@pytest.mark.parametrize("num_domains", [1, 2, 7])
def test_skewness_is_that_of_equation_4(num_domains):
    # s = max over lambda of chi2(lambda || m/m) + 1; the maximum is at a corner of the simplex.
    draw = random.Random(num_domains)
    examples = {f"d{k}": draw.randint(1, 50) for k in range(num_domains)}
    total = sum(examples.values())
    shares = [n / total for n in examples.values()]

    def chi_squared(weights: list[float]) -> float:
        return sum((w - q) ** 2 / q for w, q in zip(weights, shares))

    corners = [[float(i == k) for i in range(num_domains)] for k in range(num_domains)]
    best = max(chi_squared(corner) for corner in corners) + 1
    found = skewness(examples)
    assert found.value == pytest.approx(best)
    assert examples[found.rarest] == found.num_examples == min(examples.values())
    for _ in range(100):
        raw = [draw.expovariate(1) for _ in range(num_domains)]
        assert chi_squared([r / sum(raw) for r in raw]) + 1 <= found.value + 1e-9


def test_equal_domains_have_the_least_skewness():
    assert skewness({"a": 5, "b": 5, "c": 5}).value == 3
