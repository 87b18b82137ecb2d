"""Search spaces, objectives, and the flag files of best trials."""

import dataclasses
import math

import pytest
from optuna.trial import FixedTrial

from binaries import train, tune
from tests.support import golden
from tests.support.commands import compared_specs, given
from tests.support.results import make_evaluation, measures
from tff_agnostic.base.errors import UserError
from tff_agnostic.program.studies.search_space import (
    dimension,
    parse_objective,
    parse_search,
    searchable,
)
from tff_agnostic.program.studies.searched_method import compare_flags, train_flags
from tff_agnostic.program.studies.tune import identity, searched_arms

_SETTINGS = searchable("digits")


@pytest.mark.parametrize(
    ("flag", "text", "ends"),
    [
        ("client_learning_rate", "log:0.01..1", (0.01, 1.0)),
        ("q", "0.5..5/0.5", (0.5, 5.0)),
        ("window", "log:5..20", (5, 20)),
        ("window", "5..20/5", (5, 20)),
        ("client_shuffle", "choice:true,false", (True, False)),
        (
            "server_optimizer",
            "choice:sgd, adam:epsilon=0.01",
            ("sgd", "adam:beta_1=0.9,epsilon=0.01"),
        ),
        ("lambda_initial", "choice:0.5,0.5|0.8,0.2", ((0.5, 0.5), (0.8, 0.2))),
        ("concentration", "log:0.1..10", (0.1, 10.0)),
    ],
)
def test_ranges_include_both_ends(flag, text, ends):
    dim = dimension(_SETTINGS[flag], text)
    extremes = dim.extremes()
    assert tuple(extremes) == ends
    assert [type(v) for v in extremes] == [type(v) for v in ends]
    # Both ends can be sampled, and keep their values.
    for value in ends:
        drawn = dim.sampled(value)
        assert dim.value(drawn) == value
        trial = FixedTrial({flag: drawn})
        dim.draw(trial)
        assert trial.params == {flag: drawn}


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("client_learning_rate", "log:0.01..1", 8.0),
        ("window", "5..20/5", 7),
        ("server_optimizer", "choice:sgd,adam", "momentum:momentum=0.9"),
        ("max_examples", "5..20", None),
    ],
)
def test_values_outside_range_have_no_sample(flag, text, value):
    assert dimension(_SETTINGS[flag], text).sampled(value) is None


@golden.values
def test_invalid_range_raises_user_error(case):
    flag, text = case
    return golden.refusal(dimension, _SETTINGS[flag], text)


def test_method_range_replaces_shared_range():
    text = "client_learning_rate=log:0.01..1; window=5..20;q_ffl:q=0.1..5;q_ffl:window=1..2"
    methods = {
        "fed_avg": ["client_learning_rate"],
        "q_ffl": ["client_learning_rate", "q", "window"],
    }
    search = parse_search(text, _SETTINGS, methods)
    assert list(search["fed_avg"]) == ["client_learning_rate"]
    assert {name: dim.text for name, dim in search["q_ffl"].items()} == {
        "client_learning_rate": "log:0.01..1",
        "q": "0.1..5",
        "window": "1..2",
    }
    for lacking, message in (
        ({"q_ffl": ["client_learning_rate", "window"]}, "q_ffl:q has no effect: q_ffl has no q"),
        ({"q_ffl": ["q"]}, "window has no effect: none of fed_avg, q_ffl has it"),
        ({"other": ["mu"]}, "expected a setting of other, found none"),
    ):
        with pytest.raises(UserError, match=f"^--search: {message}"):
            parse_search(text, _SETTINGS, {**methods, **lacking})


@golden.values
def test_invalid_search_raises_user_error(case):
    methods = {name: [*_SETTINGS] for name in ("fed_avg", "q_ffl")}
    return golden.refusal(parse_search, case, _SETTINGS, methods)


def test_evaluation_and_files_are_not_searchable():
    fixed = {"rounds", "seed", "runtime", "worst_min_examples", "aggregation", "initial_model"}
    assert not {*fixed, "heldout_share", "base_predictors"} & {*_SETTINGS}
    emnist = searchable("emnist")
    assert "network" in emnist and not {"test_split", "train_share"} & {*emnist}


# --- Objectives


_MEASURES = measures("loss", "accuracy")
_ODD = "1*a+b): c"


@pytest.mark.parametrize(
    ("text", "value", "higher"),
    [
        # The worst accuracy is the smallest one, and the worst loss is the largest one.
        ("worst", 0.6, True),
        ("worst:loss", 0.9, False),
        ("client_mean", 0.75, True),
        ("0.7*worst+0.3*overall", 0.7 * 0.6 + 0.3 * 0.8, True),
        ("2*worst + 1*overall + superquantile", (2 * 0.6 + 0.8 + 0.5) / 4, True),
        ("domain(rare):loss", 0.6, False),
        (f"domain({_ODD})+3*domain(often):accuracy", (0.7 + 3 * 0.9) / 4, True),
    ],
)
def test_objective_equals_weighted_mean(text, value, higher):
    domains = {"often": 0.9, "rare": 0.6, _ODD: 0.7}
    over_clients = {name: {"mean": 0.75, "superquantile": 0.5} for name in _MEASURES}
    result = {
        "domains": {name: {"loss": v, "accuracy": v} for name, v in domains.items()},
        "overall": {"loss": 0.8, "accuracy": 0.8, "over_clients": over_clients},
        "worst": {"loss": {"value": 0.9}, "accuracy": {"value": 0.6}},
    }
    objective = parse_objective(text, _MEASURES, list(domains))
    assert objective.value_in(result) == pytest.approx(value, rel=1e-12)
    assert objective.higher_is_better is higher
    # The objective may also be given by name.
    assert parse_objective(objective.name, _MEASURES, list(domains)) == objective


def test_objectives_are_computed_from_result_json():
    def value(text, report):
        return parse_objective(text, _MEASURES, ("a", "b")).value_in(report.to_json())

    report = make_evaluation({"a": 1.0 / 3, "b": 2.0 / 7})
    for text in ("worst", "overall:loss", "superquantile", "client_mean:loss", "domain(b):loss"):
        assert math.isfinite(value(text, report))
    assert value("worst", dataclasses.replace(report, worst_min_examples=5)) is None
    assert value("overall:loss", make_evaluation({"a": 1.0, "b": math.inf})) is None


def test_default_objective_is_accuracy_or_else_loss():
    assert parse_objective("worst", measures("loss")).name == "worst:loss"
    assert parse_objective("worst", _MEASURES).text(0.84213) == "84.21%"
    assert parse_objective("worst:loss", _MEASURES).text(0.84213) == "0.8421"


@golden.values
def test_invalid_objective_raises_user_error(case):
    return golden.refusal(parse_objective, case, _MEASURES, ("often", "rare"))


# --- Searches have methods, and write flag files for `train` and `compare`


_SEARCH = (
    "client_learning_rate=log:0.01..1;fair:q=0.1..5;agnostic_fed_avg:window=5..20;"
    "agnostic_fed_avg:lambda_initial=choice:0.5,0.5|0.2,0.8;"
    "server_optimizer=choice:sgd|adam:beta_1=0.5,epsilon=0.01;"
    "agnostic_fed_avg:lambda_update=choice:fixed,exponentiated_gradient;"
    "agnostic_fed_avg:lambda_learning_rate=0.1..0.9"
)
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


def _arms(search=_SEARCH, *flags):
    arguments = (
        *("--task=digits", "--num_clients=9", "--arms=fair=q_ffl:q=3;agnostic_fed_avg;fed_avg"),
        *("--rounds=7", "--clients_per_round=4", "--client_batch_size=5", "--window=12"),
        *("--worst_min_examples=3", "--seed=9", f"--search={search}", *flags),
    )
    return searched_arms(given(tune, *arguments))


def _expected(arm, sampled):
    """Returns the run of a trial on the test split with seed 0.

    Fixed domain weights have no learning rate, so the run omits it.
    """
    spec = arm.spec({f: v for f, v in sampled.items() if f != "lambda_learning_rate"}, 0)
    return dataclasses.replace(spec, task_options={**spec.task_options, "heldout_share": 0.0})


def _compared(path):
    return {name: runs[0] for name, runs in compared_specs(f"--flagfile={path}").items()}


def test_flag_files_describe_best_trials(tmp_path):
    arms, path = _arms(), tmp_path / "best.flags"
    specs = {name: arm.best_run(_SAMPLED[name]) for name, arm in arms.items()}
    expected = {name: _expected(arm, _SAMPLED[name]) for name, arm in arms.items()}
    for name, arm in arms.items():
        path.write_text(train_flags(arm, specs[name], "The best."))
        assert given(train, f"--flagfile={path}").spec() == expected[name]
        assert list(_compared(path).values()) == [expected[name]]
    text = compare_flags(arms, specs, "The best of each.") or ""
    path.write_text(text)
    assert _compared(path) == expected
    # Shared settings are listed once.
    assert text.count("rounds=7") == text.count("client_batch_size=5") == 1
    assert text.startswith("# The best of each.\n")


def test_comparison_needs_equal_task_options():
    arms = _arms("concentration=0.1..1;client_learning_rate=0.1..1")

    def text(*values):
        specs = {
            name: arm.best_run({"concentration": value})
            for (name, arm), value in zip(arms.items(), values)
        }
        return compare_flags(arms, specs, "The best of each.")

    assert "--concentration=0.25\n" in text(0.25, 0.25, 0.25)
    assert text(0.25, 0.5, 0.25) is None


def test_flag_file_has_task_paths(tmp_path):
    model, store = tmp_path / "model.py", tmp_path / "s.store"
    flags = (f"--model={model}", f"--data={store}", "--rounds=3", "--algorithms=fed_avg")
    search = "--search=client_learning_rate=0.1..1"
    (arm,) = searched_arms(given(tune, "--task=custom", *flags, search)).values()
    path = tmp_path / "best.flags"
    path.write_text(train_flags(arm, arm.best_run({"client_learning_rate": 0.25}), "The best."))
    spec = given(train, f"--flagfile={path}").spec()
    assert (spec.task_options["model"], spec.data) == (str(model), str(store))
    assert spec.algorithm.client.learning_rate == 0.25


def test_first_trial_has_the_given_settings():
    arms = _arms()
    values, outside = arms["fair"].start(9)
    assert values == {"client_learning_rate": 1.0, "server_optimizer": "sgd", "q": 3.0}
    assert outside == []
    # FedAvg's default learning rate on digits is 8, outside of the range.
    values, outside = arms["fed_avg"].start(9)
    assert values == {"server_optimizer": "sgd"}
    assert any("client_learning_rate=8.0 is outside of log:0.01..1" in text for text in outside)


@golden.values
def test_invalid_ends_raise_user_error(case):
    def check():
        arms = _arms(f"{case};client_epochs=1..3" if "fair:" in case else case)
        task = next(iter(arms.values())).spec({}, 9).load_task()
        for arm in arms.values():
            arm.check(9, task)

    return golden.refusal(check)


def test_rejects_methods_of_two_stages():
    flags = ("--task=digits", "--algorithms=last_layer", "--search=client_learning_rate=0.1..1")
    message = golden.refusal(searched_arms, given(tune, *flags))
    assert message.startswith("--arms: expected methods of one stage to search, found last_layer")


def test_search_keeps_the_secure_minimum_of_clients():
    secure = _arms("clients_per_round=1..8", "--aggregation=secure")["fed_avg"]
    with pytest.raises(UserError, match=r"--clients_per_round: expected at least --secure_min_cli"):
        secure.check(9, secure.spec({}, 9).load_task())


def test_identity_depends_on_file_contents(tmp_path):
    file = tmp_path / "model.keras"
    file.touch()
    arms = {"fed_avg": _arms(_SEARCH, f"--initial_model={file}")["fed_avg"]}
    task = _arms()["fed_avg"].spec({}, 9).load_task()
    identities = []
    for content in (b"one", b"one", b"another"):
        file.write_bytes(content)
        identities.append(identity(arms, "worst", (9,), task))
    first, same, other = identities
    assert first == same
    assert [key for key in first if first[key] != other[key]] == ["files"]
