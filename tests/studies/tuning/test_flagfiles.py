"""Files of flags are those runs again, in `train` and in `compare`."""

from typing import Any, Optional

import pytest

from binaries import train
from tests import golden
from tests.binaries.harness import compared_specs, given
from tff_agnostic.errors import UserError
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.studies.optuna_studies import Method
from tff_agnostic.studies.search_space import parse_search, searchable
from tff_agnostic.studies.searched_method import SearchedArm, identity
from tff_agnostic.studies.tuning_report import flags_of_all, flags_of_one
from tff_agnostic.tasks.registry import heldout_options, load_task
from tff_agnostic.tasks.task import TaskContext

_SEARCH = (
    "client_learning_rate=log:0.01..1;fair:q=0.1..5;agnostic_fed_avg:window=5..20;"
    "agnostic_fed_avg:initial_domain_weights=choice:0.5,0.5|0.2,0.8;"
    "server_optimizer=choice:sgd,momentum;server_momentum=0.1..0.9"
)
_ROWS = {"fair": {"algorithm": "q_ffl", "q": 3.0}, "agnostic_fed_avg": {}, "fed_avg": {}}
_SHARED = {
    "rounds": 7,
    "clients_per_round": 4,
    "batch_size": 5,
    "window": 12,
    "worst_min_examples": 3,
    "seed": 9,
}


def _arms(search: str = _SEARCH, **options: Any) -> dict[str, SearchedArm]:
    dimensions = parse_search(search, searchable("digits"), list(_ROWS))
    found = {}
    for name, settings in _ROWS.items():
        arm = SearchedArm(
            name,
            name,
            "digits",
            {"algorithm": name, **settings},
            _SHARED,
            heldout_options("digits", {"num_clients": 9, **options}),
        )
        has = list(arm.spec({}, 9).flags())
        found[name] = SearchedArm(
            **{**vars(arm), "dimensions": dimensions.of(name, has)},
        )
    return found


_SAMPLED = {
    "fair": {"client_learning_rate": 0.1, "q": 0.3, "server_optimizer": "sgd"},
    "agnostic_fed_avg": {
        "client_learning_rate": 0.123456789012345,
        "window": 6,
        "initial_domain_weights": "0.2,0.8",
        "server_optimizer": "momentum",
        "server_momentum": 0.25,
    },
    "fed_avg": {"client_learning_rate": 1e-2, "server_optimizer": "sgd", "server_momentum": 0.5},
}


def _expected(arm: SearchedArm, sampled: dict[str, Any]) -> RunSpec:
    """The run of a trial, but on the test split and with the usual seed.

    Momentum has no effect on sgd, and is left out.
    """
    has_momentum = sampled["server_optimizer"] == "momentum"
    left_out = () if has_momentum else ("server_momentum",)
    found = arm.spec({f: v for f, v in sampled.items() if f not in left_out}, 0)
    options = {**found.task_options, "heldout_share": 0.0}
    return RunSpec(**{**vars(found), "task_options": options})


def _trained(path) -> RunSpec:
    return given(train, f"--flagfile={path}").spec()


def _compared(path) -> dict[str, RunSpec]:
    specs = compared_specs(f"--flagfile={path}")
    return {name: trials[0] for name, trials in specs.items()}


def test_both_commands_take_the_file_of_an_algorithm(tmp_path):
    for name, arm in _arms().items():
        settings = arm.settings(_SAMPLED[name], 9)
        path = tmp_path / f"{name}.flags"
        path.write_text(flags_of_one(arm, settings, "The best."))
        expected = _expected(arm, _SAMPLED[name])
        assert _trained(path) == expected
        assert list(_compared(path).values()) == [expected]
        assert path.read_text().startswith("# The best.\n")


def test_a_comparison_has_each_algorithm_with_its_own(tmp_path):
    arms = _arms()
    settings = {name: arm.settings(_SAMPLED[name], 9) for name, arm in arms.items()}
    path = tmp_path / "compare.flags"
    text = flags_of_all(arms, settings, "The best of each.")
    path.write_text(text or "")
    assert _compared(path) == {name: _expected(arm, _SAMPLED[name]) for name, arm in arms.items()}
    # What all share is said once.
    assert (path.read_text().count("rounds=7"), path.read_text().count("batch_size=5")) == (1, 1)


def test_options_of_the_task_are_those_of_all_rows_or_of_none():
    search = "digits_concentration=0.1..1;client_learning_rate=0.1..1"
    arms = _arms(search)

    def text(*values: float) -> Optional[str]:
        settings = {
            name: arm.settings({"digits_concentration": value}, 9)
            for (name, arm), value in zip(arms.items(), values)
        }
        return flags_of_all(arms, settings, "The best of each.")

    assert "--digits_concentration=0.25\n" in (text(0.25, 0.25, 0.25) or "")
    assert text(0.25, 0.5, 0.25) is None


def test_files_of_the_task_are_named_to_both_commands(tmp_path):
    """A model and a vocabulary of the user's are options of the task as any other."""
    model, store = tmp_path / "model.py", tmp_path / "store.sqlite"
    settings = searchable("custom")
    search = parse_search("client_learning_rate=0.1..1", settings, ["fed_avg", "q_ffl"])
    arms = {
        name: SearchedArm(
            name,
            name,
            "custom",
            {"algorithm": name},
            {"rounds": 3},
            heldout_options("custom", {"model": str(model)}),
            data=store,
            dimensions=search.shared,
        )
        for name in ("fed_avg", "q_ffl")
    }
    found = {name: arm.settings({"client_learning_rate": 0.25}, 0) for name, arm in arms.items()}
    for name, arm in arms.items():
        path = tmp_path / f"{name}.flags"
        path.write_text(flags_of_one(arm, found[name], "The best."))
        spec = _trained(path)
        assert (spec.task_options["model"], spec.data) == (str(model), str(store))
        assert spec.algorithm.client_learning_rate == 0.25
    path = tmp_path / "compare.flags"
    path.write_text(flags_of_all(arms, found, "The best of each.") or "")
    assert {spec.task_options["model"] for spec in _compared(path).values()} == {str(model)}
    assert path.read_text().count("--model=") == 1


def test_the_first_trial_has_what_is_given_as_far_as_it_lies_in_the_search():
    arms = _arms()
    values, outside = arms["fair"].start(9)
    assert values == {
        "client_learning_rate": 1.0,
        "server_optimizer": "sgd",
        "server_momentum": 0.9,
        "q": 3.0,
    }
    assert outside == []
    # Of digits with FedAvg it is 8.
    values, outside = arms["fed_avg"].start(9)
    assert values == {"server_optimizer": "sgd", "server_momentum": 0.9}
    assert any("client_learning_rate=8.0 is outside of log:0.01..1" in text for text in outside)


@golden.values
def test_ends_that_are_not_allowed_are_refused(case):
    arms = _arms(f"{case};client_epochs=1..3" if "fair:" in case else case)
    options = dict(arms["fair"].task_options)
    task = load_task("digits", options, TaskContext(9))
    with pytest.raises(UserError) as e:
        for arm in arms.values():
            arm.check(9, task)
    return str(e.value)


def test_a_range_of_cohorts_that_a_secure_sum_refuses():
    arm = _arms("clients_per_round=1..8")["fed_avg"]
    task = load_task("digits", dict(arm.task_options), TaskContext(9))
    arm.check(9, task)
    secure = SearchedArm(**{**vars(arm), "shared": {**arm.shared, "aggregation": "secure"}})
    with pytest.raises(UserError, match=r"--clients_per_round: expected at least --secure_min_cli"):
        secure.check(9, task)


def test_a_search_is_another_one_where_a_file_has_changed(tmp_path):
    """By its name a model to start from is the same."""
    file = tmp_path / "model.keras"
    file.write_bytes(b"one")
    arm = _arms()["fed_avg"]
    arm = SearchedArm(**{**vars(arm), "shared": {**arm.shared, "initial_model": str(file)}})
    task = load_task("digits", dict(arm.task_options), TaskContext(9))

    def made() -> dict[str, Any]:
        method = Method(True, seed=9, sampler="tpe", pruner="none", warm_up=1)
        return identity({"fed_avg": arm}, method, "worst", (9,), task)

    before = made()
    assert made() == before
    file.write_bytes(b"another")
    after = made()
    assert [key for key in before if before[key] != after[key]] == ["files"]
