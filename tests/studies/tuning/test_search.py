"""What --search says: ranges of settings, and whose they are."""

import dataclasses
import math
from typing import Any, Optional

import numpy as np
import pytest
from optuna.trial import FixedTrial

from binaries import train
from tests import golden
from tests.binaries.harness import compared_specs, given
from tests.run.harness import make_evaluation, measures
from tff_agnostic.base.errors import UserError
from tff_agnostic.metrics.evaluation_report import DEFAULT_PERCENTILES, Measured
from tff_agnostic.program.runs.heldout import heldout_options
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.optuna_studies import Method
from tff_agnostic.program.studies.search_space import (
    dimension,
    parse_objective,
    parse_search,
    searchable,
)
from tff_agnostic.program.studies.searched_method import SearchedArm, identity
from tff_agnostic.program.studies.tuning_report import compare_flags, train_flags
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import TaskContext

_SETTINGS = searchable("digits")


@pytest.mark.parametrize(
    ("flag", "text", "ends"),
    [
        ("client_learning_rate", "log:0.01..1", (0.01, 1.0)),
        ("client_learning_rate", "1e-3..2.5", (1e-3, 2.5)),
        ("q", "0.5..5/0.5", (0.5, 5.0)),
        ("window", "5..20", (5, 20)),
        ("window", "log:5..20", (5, 20)),
        ("window", "5..20/5", (5, 20)),
        ("client_learning_rate", "choice:0.01,0.1,1", (0.01, 0.1, 1.0)),
        ("client_shuffle", "choice:true,false", (True, False)),
        (
            "server_optimizer",
            "choice:sgd, adam:epsilon=0.01",
            ("sgd", "adam:beta_1=0.9,epsilon=0.01"),
        ),
        (
            "server_optimizer",
            "choice:adam|adam:beta_1=0.5,epsilon=0.01",
            ("adam:beta_1=0.9,epsilon=0.001", "adam:beta_1=0.5,epsilon=0.01"),
        ),
        ("lambda_initial", "choice:0.5,0.5|0.8,0.2", ((0.5, 0.5), (0.8, 0.2))),
        ("concentration", "log:0.1..10", (0.1, 10.0)),
    ],
)
def test_a_range_ends_where_it_says(flag, text, ends):
    of = dimension(_SETTINGS[flag], text)
    found = of.extremes()
    assert tuple(found) == ends
    assert [type(v) for v in found] == [type(v) for v in ends]
    # Both ends lie in it, and what is drawn there is the value again.
    for value in ends:
        drawn = of.sampled(value)
        assert of.value(drawn) == value
        trial = FixedTrial({flag: drawn})
        of.draw(trial)
        assert trial.params == {flag: drawn}


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("client_learning_rate", "log:0.01..1", 8.0),
        ("window", "5..20/5", 7),
        ("window", "5..20", 4),
        ("server_optimizer", "choice:sgd,adam", "momentum:momentum=0.9"),
        ("max_examples", "5..20", None),
    ],
)
def test_what_lies_outside_is_not_drawn(flag, text, value):
    assert dimension(_SETTINGS[flag], text).sampled(value) is None


@golden.values
def test_a_range_of_another_form_is_refused(case):
    flag, text = case
    return golden.refusal(dimension, _SETTINGS[flag], text)


def test_settings_of_all_and_of_one():
    search = parse_search(
        "client_learning_rate=log:0.01..1; window=5..20;q_ffl:q=0.1..5;q_ffl:window=1..2",
        _SETTINGS,
        ("fed_avg", "q_ffl", "agnostic"),
    )
    assert list(search.of("fed_avg", ["client_learning_rate"])) == ["client_learning_rate"]
    assert list(search.of("agnostic", ["window", "client_learning_rate"])) == [
        "client_learning_rate",
        "window",
    ]
    # Its own range takes the place of the one for all.
    of_q_ffl = search.of("q_ffl", ["client_learning_rate", "q", "window"])
    assert {name: of.text for name, of in of_q_ffl.items()} == {
        "client_learning_rate": "log:0.01..1",
        "q": "0.1..5",
        "window": "1..2",
    }
    with pytest.raises(UserError, match="q_ffl:q has no effect"):
        search.of("q_ffl", ["client_learning_rate", "window"])
    with pytest.raises(UserError, match="expected a setting of other, found none"):
        search.of("other", ["mu"])


@golden.values
def test_another_search_is_refused(case):
    return golden.refusal(parse_search, case, _SETTINGS, ("fed_avg", "q_ffl"))


@pytest.mark.parametrize(
    "flag",
    # How long, where, what is measured, on whom; files.
    [
        *("rounds", "seed", "runtime", "worst_min_examples", "aggregation", "initial_model"),
        *("heldout_share", "base_predictors"),
    ],
)
def test_not_everything_may_be_searched(flag):
    assert flag not in _SETTINGS


def test_the_split_of_a_store_may_not_be_searched():
    found = searchable("emnist")
    assert "network" in found
    assert not {"test_split", "train_share"} & set(found)


# --- What is to be good, from evaluations made by hand


_MEASURES = measures("loss", "accuracy")
_ODD = "1*a+b): c"


@pytest.fixture
def report():
    """Values of three domains, and of all clients others for each statistic."""
    found = make_evaluation({"often": 0.9, "rare": 0.6, _ODD: 0.7})
    whole = {
        name: Measured(0.8, 2, 0.75, dict.fromkeys(DEFAULT_PERCENTILES, 0.7), 0.5)
        for name in ("loss", "accuracy")
    }
    return dataclasses.replace(
        found, overall=dataclasses.replace(found.overall, measures=whole), worst_min_examples=1
    )


@pytest.mark.parametrize(
    ("text", "value", "higher"),
    [
        # The smallest accuracy is the worst one, and the largest loss.
        ("worst", 0.6, True),
        ("worst:loss", 0.9, False),
        ("overall", 0.8, True),
        ("superquantile:accuracy", 0.5, True),
        ("client_mean", 0.75, True),
        ("0.7*worst+0.3*overall", 0.7 * 0.6 + 0.3 * 0.8, True),
        ("2*worst + 1*overall + superquantile", (2 * 0.6 + 0.8 + 0.5) / 4, True),
        ("worst:loss+superquantile:loss", 0.7, False),
        ("domain(often)", 0.9, True),
        ("domain(rare):loss", 0.6, False),
        (f"domain({_ODD})+3*domain(often):accuracy", (0.7 + 3 * 0.9) / 4, True),
    ],
)
def test_the_number_of_a_name(report, text, value, higher):
    objective = parse_objective(text, _MEASURES, list(report.domains))
    np.testing.assert_allclose(objective(report), value, rtol=1e-12)
    assert objective.higher_is_better is higher
    # Its own name is the same objective.
    assert parse_objective(objective.name, _MEASURES, list(report.domains)) == objective


def test_without_a_metric_it_is_the_loss(report):
    assert parse_objective("worst", measures("loss")).name == "worst:loss"


def test_a_domain_with_few_examples_is_not_the_worst(report):
    objective = parse_objective("worst", _MEASURES)
    few = dataclasses.replace(report.domains["rare"], num_examples=3)
    domains = {**report.domains, "rare": few}
    assert objective(dataclasses.replace(report, domains=domains, worst_min_examples=4)) == 0.7
    assert math.isnan(objective(dataclasses.replace(report, worst_min_examples=5)))


def test_shares_are_read_in_percent():
    assert parse_objective("worst", _MEASURES).text(0.84213) == "84.21%"
    assert parse_objective("worst:loss", _MEASURES).text(0.84213) == "0.8421"


@golden.values
def test_another_objective_is_refused(case):
    with pytest.raises(UserError, match=r"^--objective: ") as e:
        parse_objective(case, _MEASURES, ("often", "rare"))
    return str(e.value)


# --- Files of flags are those runs again, in `train` and in `compare`


_SEARCH = (
    "client_learning_rate=log:0.01..1;fair:q=0.1..5;agnostic_fed_avg:window=5..20;"
    "agnostic_fed_avg:lambda_initial=choice:0.5,0.5|0.2,0.8;"
    "server_optimizer=choice:sgd|adam:beta_1=0.5,epsilon=0.01;"
    "agnostic_fed_avg:lambda_update=choice:fixed,exponentiated_gradient;"
    "agnostic_fed_avg:lambda_learning_rate=0.1..0.9"
)
_ROWS = {"fair": {"algorithm": "q_ffl", "q": 3.0}, "agnostic_fed_avg": {}, "fed_avg": {}}
_SHARED = {
    "rounds": 7,
    "clients_per_round": 4,
    "client_batch_size": 5,
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
        "lambda_initial": "0.2,0.8",
        "server_optimizer": "adam:beta_1=0.5,epsilon=0.01",
        "lambda_update": "fixed",
        "lambda_learning_rate": 0.5,
    },
    "fed_avg": {"client_learning_rate": 1e-2, "server_optimizer": "sgd"},
}


def _expected(arm: SearchedArm, sampled: dict[str, Any]) -> RunSettings:
    """The run of a trial, but on the test split and with the usual seed.

    Domain weights that are fixed have no learning rate: its value is not part of the settings.
    """
    found = arm.spec({f: v for f, v in sampled.items() if f != "lambda_learning_rate"}, 0)
    options = {**found.task_options, "heldout_share": 0.0}
    return RunSettings(**{**vars(found), "task_options": options})


def _trained(path) -> RunSettings:
    return given(train, f"--flagfile={path}").spec()


def _compared(path) -> dict[str, RunSettings]:
    specs = compared_specs(f"--flagfile={path}")
    return {name: trials[0] for name, trials in specs.items()}


@pytest.mark.slow
def test_both_commands_take_the_file_of_an_algorithm(tmp_path):
    for name, arm in _arms().items():
        settings = arm.settings(_SAMPLED[name], 9)
        path = tmp_path / f"{name}.flags"
        path.write_text(train_flags(arm, settings, "The best."))
        expected = _expected(arm, _SAMPLED[name])
        assert _trained(path) == expected
        assert list(_compared(path).values()) == [expected]
        assert path.read_text().startswith("# The best.\n")


def test_a_comparison_has_each_algorithm_with_its_own(tmp_path):
    arms = _arms()
    settings = {name: arm.settings(_SAMPLED[name], 9) for name, arm in arms.items()}
    path = tmp_path / "compare.flags"
    text = compare_flags(arms, settings, "The best of each.")
    path.write_text(text or "")
    assert _compared(path) == {name: _expected(arm, _SAMPLED[name]) for name, arm in arms.items()}
    # What all share is said once.
    assert (path.read_text().count("rounds=7"), path.read_text().count("client_batch_size=5")) == (
        1,
        1,
    )


def test_options_of_the_task_are_those_of_all_rows_or_of_none():
    search = "concentration=0.1..1;client_learning_rate=0.1..1"
    arms = _arms(search)

    def text(*values: float) -> Optional[str]:
        settings = {
            name: arm.settings({"concentration": value}, 9)
            for (name, arm), value in zip(arms.items(), values)
        }
        return compare_flags(arms, settings, "The best of each.")

    assert "--concentration=0.25\n" in (text(0.25, 0.25, 0.25) or "")
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
        path.write_text(train_flags(arm, found[name], "The best."))
        spec = _trained(path)
        assert (spec.task_options["model"], spec.data) == (str(model), str(store))
        assert spec.algorithm.client.learning_rate == 0.25
    path = tmp_path / "compare.flags"
    path.write_text(compare_flags(arms, found, "The best of each.") or "")
    assert {spec.task_options["model"] for spec in _compared(path).values()} == {str(model)}
    assert path.read_text().count("--model=") == 1


def test_the_first_trial_has_what_is_given_as_far_as_it_lies_in_the_search():
    arms = _arms()
    values, outside = arms["fair"].start(9)
    assert values == {"client_learning_rate": 1.0, "server_optimizer": "sgd", "q": 3.0}
    assert outside == []
    # Of digits with FedAvg it is 8.
    values, outside = arms["fed_avg"].start(9)
    assert values == {"server_optimizer": "sgd"}
    assert any("client_learning_rate=8.0 is outside of log:0.01..1" in text for text in outside)


@golden.values
def test_ends_that_are_not_allowed_are_refused(case):
    task = load_task("digits", dict(_arms()["fair"].task_options), TaskContext(9))

    def check() -> None:
        for arm in _arms(f"{case};client_epochs=1..3" if "fair:" in case else case).values():
            arm.check(9, task)

    return golden.refusal(check)


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
