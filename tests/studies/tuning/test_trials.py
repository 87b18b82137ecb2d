"""Tables and importances of trials with a known objective."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.run.harness import make_evaluation, measures
from tff_agnostic.base.errors import UserError
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.reports.document import table_text
from tff_agnostic.program.runs.heldout import heldout_options
from tff_agnostic.program.studies.optuna_studies import (
    ENDED,
    SAME_AS,
    SECONDS,
    Budget,
    Claim,
    Method,
    Studies,
)
from tff_agnostic.program.studies.runset import Pruned, RunSet
from tff_agnostic.program.studies.search import TrialRunner, Watch, best, check_defined, described
from tff_agnostic.program.studies.search_space import (
    dimension,
    parse_objective,
    parse_search,
    searchable,
)
from tff_agnostic.program.studies.searched_method import SearchedArm
from tff_agnostic.program.studies.trainer import LoadedTasks, RunTrainer
from tff_agnostic.program.studies.tuning_page import importances, trial_table
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_SETTINGS = searchable("digits")
_NO_TRAINER: Any = None
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
            trial.set_user_attr(ENDED, "diverged: round 11: no client's numbers could be used")
            found.tell(trial, state=TrialState.PRUNED)
        else:
            found.tell(trial, trial.params["window"] / 40)
    return found


@pytest.mark.nightly
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


def test_table_has_exact_values_and_marks_the_best(study):
    table = trial_table("mine", study.trials, _OBJECTIVE, {"window": 0.9, "q": 0.1})
    best_trial = best(study.trials, _OBJECTIVE)
    assert best_trial.value == max(t.value for t in study.trials if t.number != 3)
    column = table.columns.index("worst:accuracy, %")
    values = [row[column] for row in table.rows]
    assert [value.value for value in values] == [trial.value for trial in study.trials]
    assert [value.mark for value in values].index("best") == best_trial.number
    text = table_text(table)
    assert "pruned: diverged" in text and f"{best_trial.number} (best)" in text
    assert text.endswith("Importance (fraction of the objective's variance): window 90%, q 10%.")
    unknown = trial_table("mine", [], _OBJECTIVE, None)
    assert "not known" in table_text(unknown)


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


# --- What a search is told between rounds, and which trials it ends


_OBJECTIVE_OF_TRIALS = parse_objective("overall:loss", measures("loss", "accuracy"))
_SPACES = {"mine": (dimension(searchable("digits")["q"], "0.1..5"),)}


@pytest.fixture
def studies(tmp_path) -> Studies:
    method = Method(False, seed=0, sampler="random", pruner="median", warm_up=4)
    runs: RunSet = RunSet(tmp_path, {"study": "tune"}, _NO_TRAINER, True, StopRequest())
    found = Studies(tmp_path, method, runs)
    found.add("mine", {})
    return found


def _next(studies: Studies) -> Claim:
    claim = studies.taken(_SPACES, Budget(20, None))
    assert claim is not None
    return claim


def _watch(claim: Claim, runs: int = 1, values: Sequence[float] = ()) -> Watch:
    return Watch(claim, _OBJECTIVE_OF_TRIALS, rounds=8, num_runs=runs, values=values)


def _evaluation(loss: float):
    return make_evaluation({"a": loss, "b": loss})


@pytest.mark.slow
def test_later_runs_of_a_trial_report_the_mean_with_the_earlier_ones(studies):
    claim = _next(studies)
    watch = _watch(claim, runs=2)
    watch.report(4, _evaluation(3.0))
    watch.report(8, _evaluation(1.0))
    watch = _watch(claim, runs=2, values=[1.0])
    watch.report(4, _evaluation(2.0))
    watch.report(8, _evaluation(0.5))
    assert claim.reported() == {4: 3.0, 8: 1.0, 12: 1.5, 16: 0.75}
    # A resumed run evaluates some rounds again.
    _watch(claim, runs=2).report(8, _evaluation(1.0))
    assert len(claim.reported()) == 4


@pytest.mark.nightly
def test_the_median_of_the_others_ends_a_trial_from_the_warm_up_on(studies):
    for k in range(5):
        claim = _next(studies)
        watch = _watch(claim)
        for round_num in (2, 4, 8):
            watch.report(round_num, _evaluation(1.0 + k))
        studies.tell(claim, TrialState.COMPLETE, 1.0 + k)
        claim.held.close()
    worse, better, last = (_next(studies) for _ in range(3))
    _watch(worse).report(2, _evaluation(9.0))
    with pytest.raises(Pruned, match="after round 4 of 8"):
        _watch(worse).report(4, _evaluation(3.5))
    _watch(better).report(4, _evaluation(2.5))
    # After the last round there is nothing to be saved.
    _watch(last).report(8, _evaluation(9.0))
    studies.tell(worse, TrialState.PRUNED)
    assert studies.trials("mine", (TrialState.PRUNED,))[0].value == 3.5


def test_undefined_evaluation_is_not_reported(studies):
    claim = _next(studies)
    _watch(claim).report(4, _evaluation(math.inf))
    assert claim.reported() == {}


@pytest.mark.parametrize(
    "text",
    ["worst", "overall:loss", "superquantile", "client_mean:loss", "domain(b)+worst:accuracy"],
)
def test_objective_of_result_equals_that_of_report(text):
    report = make_evaluation({"a": 1.0 / 3, "b": 2.0 / 7})
    objective = parse_objective(text, measures("loss", "accuracy"), ("a", "b"))
    result = json.loads(json.dumps(report.to_json()))
    assert objective.of_result(result) == objective(report)


def test_undefined_result_is_refused_unless_it_diverged():
    def check(text: str, report) -> None:
        objective = parse_objective(text, measures("loss", "accuracy"), ("a", "b"))
        result = json.loads(json.dumps(report.to_json()))
        assert objective.of_result(result) is None
        check_defined(objective, result, "heldout")

    check("overall:loss", _evaluation(math.inf))
    with pytest.raises(UserError, match="none: of the heldout clients' domains a, b have fewer"):
        check("worst", dataclasses.replace(_evaluation(1.0), worst_min_examples=5))
    with pytest.raises(UserError, match=r"no examples of b$"):
        check("domain(b):loss+overall:loss", make_evaluation({"a": 1.0, "b": math.nan}))


def _arm(search: str, algorithm: str, **given) -> SearchedArm:
    dimensions = parse_search(search, searchable("digits"), [algorithm]).shared
    shared = {"rounds": 1, "clients_per_round": 3, **given}
    options = heldout_options("digits", {"num_clients": 4})
    return SearchedArm(
        algorithm,
        algorithm,
        "digits",
        {"algorithm": algorithm},
        shared,
        options,
        dimensions=dimensions,
    )


def _outcome(arm: SearchedArm, folder, first):
    """Returns the end of a trial with these values, up to its first round."""
    method = Method(False, seed=0, sampler="random", pruner="none", warm_up=1)
    load_task, stop = LoadedTasks(), StopRequest()
    trainer = RunTrainer(CohortRuntime(CohortOptions()), stop, load_task)
    runs: RunSet = RunSet(folder / "search", {"study": "tune"}, trainer, True, stop)
    studies = Studies(runs.folder, method, runs)
    studies.add(arm.name, first)
    claim = studies.taken({arm.name: tuple(arm.dimensions.values())}, Budget(20, None))
    runner = TrialRunner(_OBJECTIVE_OF_TRIALS, (0,), load_task, runs)
    with claim.held, LongWork("tune", 1, "runs", visible=False) as work:
        return runner(arm, claim, work)


def test_values_that_do_not_go_together_end_their_trial(tmp_path):
    arm = _arm("clients_per_round=2..4;secure_min_clients=2..3", "fed_avg", aggregation="secure")
    arm.check(0, LoadedTasks()(arm.spec({}, 0)))
    outcome = _outcome(arm, tmp_path, {"clients_per_round": 2, "secure_min_clients": 3})
    assert outcome.state is TrialState.PRUNED
    assert outcome.text.startswith("refused: --clients_per_round: expected at least --secure_min_")


@pytest.mark.nightly
def test_a_file_that_is_gone_ends_the_search(tmp_path):
    """It is no fault of the values: every later trial would be refused as well."""
    mixtures = tmp_path / "mixtures.json"
    even = {str(k): 0.1 for k in range(10)}
    odd = {str(k): 0.2 * (k % 2) for k in range(10)}
    mixtures.write_text(json.dumps({"even": even, "odd": odd}))
    hull = f"hull:file={mixtures}"
    arm = _arm("client_learning_rate=0.1..1", "agnostic_fed_avg", lambda_set=hull)
    arm.check(0, LoadedTasks()(arm.spec({}, 0)))
    mixtures.unlink()
    with pytest.raises(
        UserError, match=r"--lambda_set: .*mixtures\.json: expected a JSON file, found none"
    ):
        _outcome(arm, tmp_path, {"client_learning_rate": 0.5})
