"""What a run is: defaults in their order, whose settings are, and config.json there and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import golden
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.errors import UserError
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.spec import FORMAT, check_given_somewhere, from_flags, resolve
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import Use


def _error(task: str, given: dict[str, Any], **arguments: Any) -> str:
    return golden.refusal(resolve, task, given, {}, **arguments)


def test_what_is_given_goes_before_the_tasks_defaults_and_those_before_the_general_ones():
    spec = resolve("toy_regression", {"rounds": 3}, {"num_clients": 9})
    assert spec.config.rounds == 3
    of_task, of_algorithm = TASKS["toy_regression"].defaults["window"], spec.algorithm.window
    assert of_algorithm == of_task != type(spec.algorithm)().window
    assert spec.algorithm.client_epochs == type(spec.algorithm)().client_epochs
    assert spec.task_options["num_clients"] == 9
    assert spec.task_options["spread"] == 0.1


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
def test_a_run_has_the_settings_of_what_was_chosen(algorithm, aggregation):
    spec = resolve("digits", {"algorithm": algorithm, "aggregation": aggregation}, {})
    assert type(spec.algorithm) is ALGORITHMS[algorithm].options
    assert type(spec.aggregation) is AGGREGATIONS[aggregation].options
    assert ("secure_bits" in spec.settings()) == (aggregation == "secure")
    assert ("q" in spec.settings()) == (algorithm == "q_ffl")
    assert spec.build_aggregation().name == aggregation


def test_the_aggregation_has_its_settings():
    given = {"aggregation": "secure", "secure_max_examples": 7, "secure_bits": 20}
    aggregation = resolve("digits", given, {}).build_aggregation()
    assert (aggregation.limits.max_examples, aggregation.min_clients) == (7, 2)
    assert aggregation.options.bits == 20


@pytest.mark.parametrize("task", [name for name in TASKS if TASKS[name].algorithm_defaults])
def test_an_algorithm_may_have_its_own_defaults(task):
    for algorithm, defaults in TASKS[task].algorithm_defaults.items():
        settings = resolve(task, {"algorithm": algorithm}, {}).settings()
        assert {name: settings[name] for name in defaults} == defaults
        options = ALGORITHMS[algorithm].options()
        given = {name: getattr(options, name) for name in defaults}
        settings = resolve(task, {"algorithm": algorithm, **given}, {}).settings()
        assert {name: settings[name] for name in defaults} == given


def test_what_an_earlier_run_had_is_inherited_unless_it_is_given():
    earlier = resolve("digits", {"window": 3, "rounds": 7, "client_epochs": 2}, {})
    spec = resolve("digits", {"rounds": 9}, {}, inherited=earlier.settings())
    assert (spec.algorithm.window, spec.algorithm.client_epochs, spec.config.rounds) == (3, 2, 9)


_GIVEN: list[dict[str, Any]] = [
    {},
    {"initial_domain_weights": (0.25, 0.75), "shuffle": False, "seed": 5},
    {"algorithm": "fed_avg_target_only", "target_domain": 'with "quotes"\n'},
    {"algorithm": "q_ffl", "q": 0.0, "client_weighting": "equal"},
    {"algorithm": "fed_prox", "mu": 2.0, "aggregation": "secure", "secure_max_beta": 0.1},
]


@pytest.mark.parametrize("given", _GIVEN)
@pytest.mark.parametrize("task", list(TASKS))
def test_flags_there_and_back(task, given, tmp_path):
    data_dir, data = (
        tmp_path / name if use is not Use.NO else None
        for name, use in (("folder", TASKS[task].data_dir), ("store", TASKS[task].data))
    )
    spec = resolve(task, given, {}, data_dir, data)
    flags = {"format": FORMAT, **spec.flags()}
    assert from_flags(flags) == spec
    assert from_flags(json.loads(json.dumps(flags))) == spec


def test_flags_name_every_setting_of_the_run_and_no_other():
    flags = resolve("digits", {"algorithm": "q_ffl"}, {}).flags()
    assert set(flags) == {
        "task",
        "data_dir",
        "data",
        *(f"digits_{name}" for name in TASKS["digits"].options.__dataclass_fields__),
        # What is given each time is not kept.
        *({*RunConfig.__dataclass_fields__} - {"trust"}),
        *ALGORITHMS["q_ffl"].options.__dataclass_fields__,
    }


@golden.values
def test_what_is_given_has_to_have_an_effect(case):
    return _error("digits", case)


def test_what_several_runs_are_given_has_to_have_an_effect_on_one_of_them():
    shared = {"window": 3}
    runs = [
        resolve("digits", {"algorithm": name}, {}, shared=shared)
        for name in ("fed_avg", "agnostic_fed_avg")
    ]
    assert runs[1].algorithm.window == 3
    check_given_somewhere(runs, shared)
    with pytest.raises(UserError, match=r"^--window has no effect with --algorithm=fed_avg: it n"):
        check_given_somewhere(runs[:1], shared)


def test_a_data_dir_is_the_same_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    for name in ("data", "other/../data", str(tmp_path / "data")):
        assert resolve("adult", {}, {}, Path(name)).data_dir == str((tmp_path / "data").resolve())


def test_trials_start_from_the_newest_checkpoint_and_a_damaged_one_is_told_of_once(
    tmp_path, caplog
):
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", keep=9)

    def start() -> str:
        return resolve("digits", {"initial_model": str(tmp_path)}, {}).config.initial_model

    for round_num in (1, 2):
        checkpoints.save(round_num, {"weight": np.float32(round_num)}, {})
    newest = tmp_path / "checkpoints" / "round_00000002.npz"
    newest.write_bytes(newest.read_bytes()[:-9])
    assert {start() for _ in range(3)} == {str(newest.with_name("round_00000001.npz"))}
    assert caplog.text.count("round_00000002.npz: expected a checkpoint, found a damaged") == 1
    checkpoints.save(3, {"weight": np.float32(3)}, {})
    assert start() == str(newest.with_name("round_00000003.npz"))


def test_a_missing_flag_is_a_key_error():
    flags = {"format": FORMAT, **resolve("digits", {}, {}).flags()}
    for name in ("task", "window", "rounds", "digits_keep", "data_dir", "data"):
        with pytest.raises(KeyError, match=name):
            from_flags({k: v for k, v in flags.items() if k != name})


def test_flags_of_the_first_release_mean_what_was_done_then():
    """It had every setting of every algorithm and of secure sums, but not the later ones."""
    given = {"algorithm": "fed_avg", "aggregation": "secure"}
    flags = resolve("digits", given, {}).flags()
    others = {"window": 10, "target_domain": None, "domain_learning_rate": 0.1}
    del flags["secure_min_clients"]
    spec = from_flags({**flags, **others})
    assert spec.aggregation.min_clients == 1
    now = resolve("digits", {**given, "secure_min_clients": 1}, {})
    assert spec == now


def test_wrong_values_are_refused():
    flags = {"format": FORMAT, **resolve("digits", {}, {}).flags()}
    with pytest.raises(UserError, match="--rounds: expected at least 1, found 0"):
        from_flags({**flags, "rounds": 0})
    with pytest.raises(UserError, match="unknown task 'digit'"):
        from_flags({**flags, "task": "digit"})
    with pytest.raises(UserError, match="--algorithm: unknown algorithm 'fedavg'"):
        from_flags({**flags, "algorithm": "fedavg"})
    assert _error("digits", {"window": -1}) == "--window: expected at least 1, found -1"
    q = {"algorithm": "q_ffl", "q": -1.0}
    assert _error("digits", q) == "--q: expected at least 0.0, found -1.0"
    assert _error("digits", {"aggregation": "plane"}).startswith("--aggregation: unknown aggr")


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
