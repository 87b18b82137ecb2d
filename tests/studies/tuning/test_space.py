"""What --search says: ranges of settings, and whose they are."""

import pytest
from optuna.trial import FixedTrial

from tests import golden
from tff_agnostic.errors import UserError
from tff_agnostic.studies.search_space import dimension, parse_search, searchable

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
        ("freeze_absent_domains", "choice:true,false", (True, False)),
        ("server_optimizer", "choice:sgd, adam", ("sgd", "adam")),
        ("initial_domain_weights", "choice:0.5,0.5|0.8,0.2", ((0.5, 0.5), (0.8, 0.2))),
        ("digits_concentration", "log:0.1..10", (0.1, 10.0)),
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
        ("server_optimizer", "choice:sgd,adam", "momentum"),
        ("max_examples", "5..20", None),
    ],
)
def test_what_lies_outside_is_not_drawn(flag, text, value):
    assert dimension(_SETTINGS[flag], text).sampled(value) is None


@pytest.mark.parametrize(
    ("flag", "text", "found"),
    [
        ("q", "5", "LOW..HIGH"),
        ("q", "5..1", "LOW < HIGH"),
        ("q", "1..inf", "both finite"),
        ("q", "a..1", "a number"),
        ("q", "log:0..1", "LOW > 0"),
        ("q", "0..1/0.3", "STEP"),
        ("q", "log:1..2/0.5", "STEP"),
        ("window", "1.5..3", "a whole number"),
        ("server_optimizer", "1..2", "choice:A,B"),
        ("server_optimizer", "choice:sgd", "two or more different values"),
        ("client_learning_rate", "choice:1,1.0", "two or more different values"),
        ("initial_domain_weights", "choice:0.5,0.5", "two or more different values"),
    ],
)
def test_a_range_of_another_form_is_refused(flag, text, found):
    with pytest.raises(UserError, match=found):
        dimension(_SETTINGS[flag], text)


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
        *("digits_heldout_share", "base_predictors"),
    ],
)
def test_not_everything_may_be_searched(flag):
    assert flag not in _SETTINGS


def test_the_split_of_a_store_may_not_be_searched():
    found = searchable("emnist")
    assert "emnist_model" in found
    assert not {"emnist_test_split", "emnist_train_share"} & set(found)
