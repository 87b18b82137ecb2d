"""What a run is: defaults in their order, and config.json there and back."""

import json
from pathlib import Path

import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.program.config import RunConfig
from tff_agnostic.program.run_spec import from_flags, resolve
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import Use


def test_what_is_given_goes_before_the_tasks_defaults_and_those_before_the_general_ones():
    spec = resolve("toy_regression", {"rounds": 3}, {"num_clients": 9})
    assert spec.config.rounds == 3
    assert spec.config.window == TASKS["toy_regression"].defaults["window"] != RunConfig().window
    assert spec.config.client_epochs == RunConfig().client_epochs
    assert spec.task_options["num_clients"] == 9
    assert spec.task_options["spread"] == 0.1


@pytest.mark.parametrize("task", [name for name in TASKS if TASKS[name].algorithm_defaults])
def test_an_algorithm_may_have_its_own_defaults(task):
    for algorithm, defaults in TASKS[task].algorithm_defaults.items():
        config = resolve(task, {"algorithm": algorithm}, {}).config
        assert {name: getattr(config, name) for name in defaults} == defaults
        given = {name: getattr(RunConfig(), name) for name in defaults}
        config = resolve(task, {"algorithm": algorithm, **given}, {}).config
        assert {name: getattr(config, name) for name in defaults} == given


@pytest.mark.parametrize("task", list(TASKS))
def test_flags_there_and_back(task, tmp_path):
    given = {
        "initial_domain_weights": (0.25, 0.75),
        "target_domain": 'with "quotes"\n',
        "shuffle": False,
        "secure_max_beta": 0.1,
        "seed": 5,
    }
    data_dir, data = (
        tmp_path / name if use is not Use.NO else None
        for name, use in (("folder", TASKS[task].data_dir), ("store", TASKS[task].data))
    )
    for spec in (resolve(task, {}, {}), resolve(task, given, {}, data_dir, data)):
        flags = spec.flags()
        assert from_flags(flags) == spec
        assert from_flags(json.loads(json.dumps(flags))) == spec


def test_flags_name_every_setting():
    flags = resolve("digits", {}, {}).flags()
    assert set(flags) == {
        "task",
        "data_dir",
        "data",
        *(f"digits_{name}" for name in TASKS["digits"].options.__dataclass_fields__),
        *RunConfig.__dataclass_fields__,
    }


def test_a_data_dir_is_the_same_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name in ("data", "other/../data", str(tmp_path / "data")):
        assert resolve("adult", {}, {}, Path(name)).data_dir == str((tmp_path / "data").resolve())


def test_a_missing_flag_is_a_key_error():
    flags = resolve("digits", {}, {}).flags()
    for name in ("task", "window", "digits_keep", "data_dir", "data"):
        with pytest.raises(KeyError, match=name):
            from_flags({k: v for k, v in flags.items() if k != name})


def test_wrong_values_are_refused():
    flags = resolve("digits", {}, {}).flags()
    with pytest.raises(UserError, match="--rounds: expected at least 1, found 0"):
        from_flags({**flags, "rounds": 0})
    with pytest.raises(UserError, match="unknown task 'digit'"):
        from_flags({**flags, "task": "digit"})
    with pytest.raises(UserError, match="--window: expected at least 1, found -1"):
        resolve("digits", {"window": -1}, {})


def test_tasks_are_loaded_with_the_seed_and_the_options():
    spec = resolve("toy_regression", {"seed": 4}, {"num_clients": 3})
    assert len(spec.load_task().train.client_ids) == 3
    first = spec.load_task().train.read("client_000")["y"]
    other_seed = resolve("toy_regression", {"seed": 5}, {"num_clients": 3}).load_task()
    assert first.tolist() == spec.load_task().train.read("client_000")["y"].tolist()
    assert first.tolist() != other_seed.train.read("client_000")["y"].tolist()


def test_training_clients_are_cut_to_their_first_examples_and_test_clients_are_not():
    whole = resolve("toy_regression", {}, {"num_clients": 3}).load_task()
    task = resolve("toy_regression", {"max_examples": 2}, {"num_clients": 3}).load_task()
    assert list(task.train.client_ids) == list(whole.train.client_ids)
    for client_id in whole.train.client_ids:
        found, expected = task.train.read(client_id), whole.train.read(client_id)
        assert {name: c.tolist() for name, c in found.items()} == {
            name: c[:2].tolist() for name, c in expected.items()
        }
    for client_id in whole.test.client_ids:
        expected = whole.test.read(client_id)
        assert {name: c.tolist() for name, c in task.test.read(client_id).items()} == {
            name: c.tolist() for name, c in expected.items()
        }
