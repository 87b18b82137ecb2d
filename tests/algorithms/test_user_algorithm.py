"""Loading a user's algorithm from a file: its spec, label, fingerprint and errors."""

import dataclasses
import os
from pathlib import Path

import pytest

from tests.support.algorithm_files import BY_SIZE, write_by_size
from tests.support.models import linear_model
from tests.support.options import make_options
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.program.options.user_algorithm import (
    algorithm_fingerprint,
    algorithm_label,
    algorithm_named,
    building_options,
    is_user_file,
    load_user_algorithm,
)


@pytest.fixture
def path(tmp_path) -> Path:
    return write_by_size(tmp_path / "by_size.py")


def test_registered_algorithm_has_name_without_fingerprint():
    for name, spec in ALGORITHMS.items():
        assert not is_user_file(name)
        assert algorithm_named(name) is spec
        assert algorithm_label(name) == name
        assert algorithm_fingerprint(name) == {}


def test_file_is_named_by_path_and_stem(path, tmp_path, monkeypatch):
    assert is_user_file(str(path))
    assert algorithm_named(str(path)).label == "By size"
    assert algorithm_label(str(path)) == "by_size"
    monkeypatch.chdir(tmp_path)
    assert algorithm_named("by_size.py") is algorithm_named(str(path))


def test_unchanged_file_is_executed_once(path):
    first = load_user_algorithm(path)
    assert load_user_algorithm(path).options is first.options
    write_by_size(path, ("Within(least=0)] = 1.0", "Within(least=0)] = 2.00"))
    changed = load_user_algorithm(path)
    assert (first.options().size_power, changed.options().size_power) == (1.0, 2.0)


def test_fingerprint_depends_on_code_only(path, tmp_path):
    copy = write_by_size(tmp_path / "copy.py")
    assert algorithm_fingerprint(str(path)) == algorithm_fingerprint(str(copy))
    write_by_size(copy, ('"By size"', '"By its size"'))
    assert algorithm_fingerprint(str(path)) != algorithm_fingerprint(str(copy))


@pytest.mark.slow
def test_fingerprint_includes_modules_imported_while_building(tmp_path):
    (tmp_path / "helper.py").write_text("LABEL = 1\n")
    line = "def by_size(problem, options):\n"
    path = write_by_size(tmp_path / "mine.py", (line, f"{line}    import helper\n"))
    problem = Problem.numbered(linear_model(), 2)
    spec = load_user_algorithm(path)
    spec.build(problem, spec.options())
    actual = algorithm_fingerprint(str(path))
    assert set(actual) == {"algorithm", "files that the algorithm imports"}
    # A second run in the same process has the same fingerprint.
    spec.build(problem, spec.options())
    assert algorithm_fingerprint(str(path)) == actual


@pytest.mark.slow
def test_equal_options_share_traces(path):
    spec = load_user_algorithm(path)
    problem = Problem.numbered(linear_model(), 2)
    clients = [
        spec.build(problem, make_options(spec.options, size_power=power)).steps[0].client_work
        for power in (0.5, 0.5, 1.0)
    ]
    assert clients[0] == clients[1] != clients[2]
    assert hash(clients[0]) == hash(clients[1])


def test_invalid_options_name_the_file_or_field(path):
    path.write_text(
        BY_SIZE.replace(
            "\n\ndef weighted_work",
            "\n    def __post_init__(self):\n        super().__post_init__()\n"
            "        assert self.size_power != 3\n"
            "\n\ndef weighted_work",
        )
    )
    options = load_user_algorithm(path).options
    with pytest.raises(UserError, match=r"by_size.py: options fails:"), building_options(str(path)):
        options(size_power=3.0)
    with (
        pytest.raises(UserError, match=r"^size_power: expected at least 0, found -1.0$"),
        building_options(str(path)),
    ):
        options(size_power=-1.0)
    with building_options("fed_avg"):
        ALGORITHMS["fed_avg"].options()


def test_rejects_unreadable_file(tmp_path):
    with pytest.raises(UserError, match=r"missing.py: expected a Python file, found none$"):
        load_user_algorithm(tmp_path / "missing.py")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(
        UserError, match=r"folder.py: expected a Python file, cannot read it \(Is a directory\)$"
    ):
        load_user_algorithm(tmp_path / "folder.py")
    assert dataclasses.is_dataclass(load_user_algorithm(write_by_size(tmp_path / "a.py")).options)
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert load_user_algorithm(tmp_path / "a.py").label == "By size"
