"""LEAF's JSON: users with vectors or text, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import golden
from tests.importing.harness import read, refused

_VECTORS = {
    "users": ["u1", "u2"],
    "num_samples": [2, 1],
    "user_data": {
        "u1": {"x": [[0.5, 1], [2, 3]], "y": [0, 1]},
        "u2": {"x": [[4, 5]], "y": [2]},
    },
}
_ALL = {"domain_name": "all"}


def _file(folder: Path, content: Any, name: str = "data.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _user(x: Any, y: Any) -> dict[str, Any]:
    return {"users": ["u"], "user_data": {"u": {"x": x, "y": y}}}


def test_users_are_clients(tmp_path):
    examples, log = read("leaf", _file(tmp_path, _VECTORS), **_ALL)
    assert [(e.record.client, e.record.domain, e.record.split) for e in examples] == [
        ("u1", "all", None),
        ("u1", "all", None),
        ("u2", "all", None),
    ]
    assert [e.record.features["x"].tolist() for e in examples] == [[0.5, 1], [2, 3], [4, 5]]
    assert [e.record.features["label"] for e in examples] == [0, 1, 2]
    assert examples[1].place == "data.json user u1 example 1"
    assert log.num_records == 3


def test_images_get_a_name_and_a_shape(tmp_path):
    path = _file(tmp_path, _user([[1, 2, 3, 4]], [7]))
    (example,), _ = read("leaf", path, feature_name="pixels", feature_shape=(2, 2), **_ALL)
    assert example.record.features["pixels"].tolist() == [[1, 2], [3, 4]]


def test_text_without_classes(tmp_path):
    path = _file(tmp_path, _user(["To be, or", "..."], ["n", "x"]))
    examples, log = read("leaf", path, case="upper", **_ALL)
    assert [e.record.features for e in examples] == [{"tokens": "TO BE , OR"}]
    assert log.skipped == {"text without words": 1}


def test_text_in_lists_with_classes(tmp_path):
    path = _file(tmp_path, _user([["1", "Mon", "so sad"], ["2", "Tue", "yay!"]], [0, 1]))
    examples, _ = read("leaf", path, text_column="2", **_ALL)
    assert [e.record.features for e in examples] == [
        {"tokens": "so sad", "label": 0},
        {"tokens": "yay !", "label": 1},
    ]


def test_labels_that_are_numbers(tmp_path):
    path = _file(tmp_path, _user([[1], [2]], [-0.5, 3]))
    examples, _ = read("leaf", path, label_kind="number", **_ALL)
    assert [e.record.features["label"] for e in examples] == [-0.5, 3.0]
    texts = _file(tmp_path, _user(["so sad"], ["to be"]))
    message = refused("leaf", texts, label_kind="number", **_ALL)
    assert message == "data.json user u example 0: expected a number as label, found 'to be'"


def test_folders_that_say_what_is_for_testing(tmp_path):
    for name in ("data/train/a.json", "data/test/a.json", "data/b.json"):
        _file(tmp_path, _VECTORS, name)
    examples, _ = read("leaf", tmp_path, **_ALL)
    assert [e.record.split for e in examples] == [None] * 3 + ["test"] * 3 + ["train"] * 3


def test_domains_of_clients(tmp_path):
    domains = _file(tmp_path, "u2,north\n\nu1,south\n", "domains.csv")
    path = _file(tmp_path, _VECTORS)
    examples, _ = read("leaf", path, domains_file=str(domains))
    assert [e.record.domain for e in examples] == ["south", "south", "north"]
    domains.write_text("u1,south\n")
    message = f"data.json user u2: expected a line in {domains}, found none"
    assert refused("leaf", path, domains_file=str(domains)) == message
    examples, log = read("leaf", path, skip_bad=True, domains_file=str(domains))
    assert (len(examples), log.skipped) == (2, {"unknown domain": 1})


@pytest.mark.parametrize("content", ["u1\n", "u1,a,b\n", "u1,\n", "u1,a\nu1,b\n"])
def test_domains_that_are_none(tmp_path, content):
    domains = _file(tmp_path, content, "domains.csv")
    message = refused("leaf", _file(tmp_path, _VECTORS), domains_file=str(domains))
    assert message.startswith(f"{domains}:")
    assert "expected CLIENT,DOMAIN, each client once, found" in message


def test_users_without_examples_are_counted(tmp_path):
    data = {"user_data": {"u": {"x": [], "y": []}, **_VECTORS["user_data"]}}
    examples, log = read("leaf", _file(tmp_path, data), **_ALL)
    assert log.skipped == {"user without examples": 1}
    for example in examples:
        log.keep(example.record.client)
    assert log.clients_without_examples() == 1


@golden.values
def test_what_is_refused(tmp_path, case):
    return refused("leaf", _file(tmp_path, case), **_ALL)


def test_another_encoding(tmp_path):
    path = tmp_path / "data.json"
    path.write_bytes('{"user_data": {"é": {"x": ["a"], "y": ["b"]}}}'.encode("latin-1"))
    assert refused("leaf", path, **_ALL).startswith(f"{path}: expected JSON, found: ")


@golden.values
def test_options_that_are_missing_or_too_many(tmp_path, case):
    return refused("leaf", tmp_path, **case)
