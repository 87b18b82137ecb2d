"""Tables, figures and importances of trials with a known objective."""

import csv
import io

import optuna
import pytest
from optuna.trial import TrialState

from tests.run.harness import is_png, measures
from tff_agnostic.reports.figures import save
from tff_agnostic.studies.optuna_studies import ENDED, SAME_AS, SECONDS
from tff_agnostic.studies.search import best, described
from tff_agnostic.studies.search_space import dimension, parse_objective, searchable
from tff_agnostic.studies.tuning_report import importance_figure, importances, slices, table, to_csv

_SETTINGS = searchable("digits")
_DIMENSIONS = {
    flag: dimension(_SETTINGS[flag], text)
    for flag, text in {
        "client_learning_rate": "log:0.01..1",
        "window": "5..20",
        "server_optimizer": "choice:sgd,adam",
        "q": "0..1/0.25",
    }.items()
}
_OBJECTIVE = parse_objective("worst", measures("loss", "accuracy"))


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """Accuracy is that of the window alone; one trial ended early, another failed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.RandomSampler(0), study_name="mine"
    )
    for k in range(16):
        trial = found.ask()
        for of in _DIMENSIONS.values():
            of.draw(trial)
        trial.report(0.5, 10)
        trial.set_user_attr(SECONDS, 1.25)
        if k == 3:
            trial.set_user_attr(ENDED, "diverged: round 11: no client returned finite numbers")
            found.tell(trial, state=TrialState.PRUNED)
        else:
            found.tell(trial, trial.params["window"] / 40)
    return found


def test_importance_is_that_of_the_setting_that_matters(study):
    shares = importances(study)
    assert next(iter(shares)) == "window" and shares["window"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)


def test_without_differences_there_is_no_importance():
    found = optuna.create_study(direction="maximize")
    for value in (0.5, 0.5):
        assert importances(found) is None
        trial = found.ask()
        trial.suggest_float("q", 0, 1)
        found.tell(trial, value)
    assert importances(found) is None


def test_the_table_marks_the_best(study):
    text = table("mine", study.trials, _OBJECTIVE)
    found = best(study.trials, _OBJECTIVE)
    assert found.value == max(t.value for t in study.trials if t.number != 3)
    (row,) = [line for line in text.splitlines() if "(best)" in line]
    assert row.split()[0] == str(found.number) and f"{100 * found.value:.2f}" in row.split()
    assert "worst:accuracy, %" in text.splitlines()[0]
    assert text.count("pruned") == 1


def test_of_equal_trials_the_first_is_the_best_and_losses_are_small():
    found = optuna.create_study(direction="minimize")
    for value in (0.7, 0.5, 0.5):
        found.tell(found.ask(), value)
    objective = parse_objective("overall:loss", measures("loss", "accuracy"))
    assert best(found.trials, objective).number == 1
    assert best([], objective) is None


def test_how_a_trial_ended_in_words(study):
    assert described(study.trials[3], _OBJECTIVE).startswith("diverged: round 11")
    value = study.trials[0].value
    assert described(study.trials[0], _OBJECTIVE) == f"worst:accuracy {100 * value:.2f}%"
    again = optuna.trial.create_trial(value=0.5, user_attrs={SAME_AS: 7})
    assert described(again, _OBJECTIVE) == "worst:accuracy 50.00%, as trial 7"


def test_csv_has_every_trial_with_its_exact_values(study):
    rows = list(csv.DictReader(io.StringIO(to_csv({"mine": study.trials}, _OBJECTIVE))))
    assert [row["trial"] for row in rows] == [str(k) for k in range(16)]
    for row, trial in zip(rows, study.trials):
        assert float(row["client_learning_rate"]) == trial.params["client_learning_rate"]
        assert float(row["worst:accuracy"]) == trial.value
        assert (row["server_optimizer"], row["seconds"]) == (
            trial.params["server_optimizer"],
            "1.2",
        )
    assert rows[3]["state"] == "pruned" and rows[3]["ended"].startswith("diverged")


def test_figures_are_images(study, tmp_path):
    figures = {
        "slices": slices("A $name", _DIMENSIONS, study.trials, _OBJECTIVE),
        # Nothing but one that ended early.
        "early": slices("early", _DIMENSIONS, study.trials[3:4], _OBJECTIVE),
        "none": slices("none", {"window": _DIMENSIONS["window"]}, [], _OBJECTIVE),
        "importance": importance_figure("A $name", importances(study)),
    }
    for name, figure in figures.items():
        save(figure, tmp_path / f"{name}.png")
        assert is_png((tmp_path / f"{name}.png").read_bytes())
    shown = [axes.get_xlabel() for axes in figures["slices"].axes]
    assert shown[:4] == list(_DIMENSIONS)
    assert figures["slices"].axes[0].get_xscale() == "log"
