"""Trials of searches: how processes claim them, how they are pruned and end, and their tables."""

import dataclasses
import functools
import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import optuna
import pytest
from optuna.trial import TrialState

from binaries import tune
from tests.support import golden
from tests.support.commands import given
from tests.support.results import make_evaluation, measures
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.reports.document import table_text
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.studies.runset import Pruned, RunSet
from tff_agnostic.program.studies.search import (
    ENDED,
    JOURNAL,
    NOTHING_NEW,
    SECONDS,
    Budget,
    Claim,
    Search,
    Watch,
    described,
    finds_nothing_new,
    sampler_seed,
    trial_name,
)
from tff_agnostic.program.studies.search_space import dimension, parse_objective, searchable
from tff_agnostic.program.studies.searched_method import SearchedArm
from tff_agnostic.program.studies.trainer import LoadedTasks
from tff_agnostic.program.studies.tune import searched_arms
from tff_agnostic.program.studies.tuning_page import SearchResult, best_trial, trial_table

_SETTINGS = searchable("digits")
_DIMENSIONS = tuple(
    dimension(_SETTINGS[flag], text)
    for flag, text in (("client_learning_rate", "log:0.01..1"), ("window", "5..20"))
)
_SPACES = {"one": _DIMENSIONS, "two": _DIMENSIONS}
_ONE = {"one": _DIMENSIONS}
_FIRST = {"client_learning_rate": 0.5, "window": 7}
_ALL = (*TrialState,)


_LOSS = parse_objective("overall:loss", measures("loss", "accuracy"))
_ACCURACY = parse_objective("worst", measures("loss", "accuracy"))


def _opened(folder, budget, first=_FIRST, spaces=_ONE, objective=_ACCURACY) -> Any:
    """Returns a started search, in which each method's first trial has the values `first`."""
    nothing: Any = None
    runs: RunSet = RunSet(folder, {"study": "tune"}, nothing, True, StopRequest())
    arms: Any = {
        name: SimpleNamespace(
            label=name, dimensions={d.flag: d for d in space}, start=lambda _: (first, [])
        )
        for name, space in spaces.items()
    }
    search = Search(arms, objective, (3,), budget, runs, nothing, warm_up=4)
    search.begin()
    return search


def _train(search: Search, claim: Claim, seconds: float) -> None:
    """Records the seconds that a claimed trial's run took."""
    path = search.runs.path(f"{claim.run_name}/seed_0")
    path.mkdir(parents=True)
    write_json(path / "seconds.json", {"seconds": seconds})
    claim.trial.set_user_attr(SECONDS, seconds)


def _finish(claim: Claim, state=TrialState.COMPLETE) -> tuple:
    rate, window = claim.trial.params["client_learning_rate"], claim.trial.params["window"]
    value = -abs(rate - 0.2) - 0.01 * window if state is TrialState.COMPLETE else None
    claim.study.tell(claim.trial.number, value, state)
    claim.held.close()
    return claim.name, claim.trial.number, claim.trial.params


def _searched(folder, trials: int, restart_after: int = 1_000) -> list[tuple]:
    """Returns a search's trials; a new process continues after every `restart_after` trials."""
    ended: list[tuple] = []
    search = _opened(folder, Budget(trials, None))
    while (claim := search.take()) is not None:
        ended.append(_finish(claim))
        if len(ended) % restart_after == 0:
            search = _opened(folder, Budget(trials, None))
    return ended


@pytest.mark.nightly
def test_interruptions_do_not_change_sampled_values(tmp_path):
    """Seven trials are more than those that the sampler draws at random when it starts."""
    whole = _searched(tmp_path / "whole", trials=7)
    assert whole == _searched(tmp_path / "parts", 7, restart_after=3)
    assert len({tuple(params.items()) for _, _, params in whole}) == 7
    # In folder two, no process dies; in folder one, a process dies after it has drawn one of two
    # values.
    drawn = []
    for name, parts in (("two", [2]), ("one", [1, 2])):
        for count in parts:
            spaces = {"one": _DIMENSIONS[:count]}
            claim = _opened(tmp_path / name, Budget(1, None), {}, spaces).take()
            claim.held.close()
        drawn.append(claim.trial.params)
    assert drawn[0] == drawn[1] and len(drawn[0]) == 2


@pytest.mark.nightly
def test_trial_of_dead_process_is_taken_again(tmp_path):
    first, second = (_opened(tmp_path, Budget(2, None), spaces=_SPACES) for _ in range(2))
    claims = [search.take() for search in (first, second) * 2]
    assert [(c.name, c.trial.number) for c in claims] == [
        *(("one", 0), ("two", 0), ("one", 1), ("two", 1))
    ]
    # All four trials are taken, and none has ended.
    assert first.take() is second.take() is None
    claims[2].trial.report(0.25, 1)
    # A killed process loses its lock.
    claims[2].held.close()
    again = second.take()
    assert (again.name, again.trial.number) == ("one", 1)
    assert again.trial.params == claims[2].trial.params
    assert again.reported() == {1: 0.25}
    for claim in (claims[0], claims[1], claims[3], again):
        _finish(claim)
    assert second.take() is None
    for name in _SPACES:
        assert [t.state for t in second.trials(name, _ALL)] == [TrialState.COMPLETE] * 2


@pytest.mark.nightly
def test_trial_that_has_ended_is_not_taken(tmp_path):
    """Another process ends the trial after this one has listed it as running."""
    first, second = (_opened(tmp_path, Budget(2, None)) for _ in range(2))
    _finish(first.take())
    assert second._claim("one", 0) is None
    assert second.take().trial.number == 1


@pytest.mark.nightly
def test_failed_trials_are_replaced(tmp_path):
    """A process died before its first trial, and then the first trial failed twice."""
    _opened(tmp_path, Budget(1, None), {})
    tried = []
    for _ in range(2):
        claim = _opened(tmp_path, Budget(1, None)).take()
        tried.append(claim.trial.params)
        _finish(claim, TrialState.FAIL)
    assert tried == [_FIRST, _FIRST]
    search = _opened(tmp_path, Budget(1, None))
    _finish(search.take())
    assert search.take() is None
    # Later trials do not repeat the given settings.
    claim = _opened(tmp_path, Budget(2, None)).take()
    assert claim.trial.params != _FIRST


@pytest.mark.nightly
def test_methods_share_the_hours_evenly(tmp_path):
    search = _opened(tmp_path, Budget(None, 60.0), spaces=_SPACES)
    seconds = {"one": [30.0, 5.0], "two": [10.0, 10.0, 10.0, 10.0]}
    order = []
    while (claim := search.take()) is not None:
        order.append(claim.name)
        _train(search, claim, seconds[claim.name][claim.trial.number])
        _finish(claim)
    # The next trial is of the method that has spent less time, until this is half of the 60 s.
    assert order == ["one", "two", "two", "two"] and search.is_complete
    for budget, is_complete in ((Budget(1, 1000.0), True), (Budget(4, 100.0), False)):
        assert _opened(tmp_path, budget, spaces=_SPACES).is_complete == is_complete


@pytest.mark.nightly
def test_repeated_trials_share_runs_and_end_the_search(tmp_path):
    """The search space has two values, although there is time for a million trainings."""
    spaces = {"one": (dimension(_SETTINGS["server_optimizer"], "choice:sgd,adam"),)}
    search = _opened(tmp_path, Budget(None, 1e6), {}, spaces)
    first: dict[str, int] = {}
    while (claim := search.take()) is not None:
        value = claim.trial.params["server_optimizer"]
        assert (claim.equal is None) == (value not in first)
        if claim.equal is None:
            _train(search, claim, 1.0)
            first[value] = claim.trial.number
        else:
            assert claim.equal.number == first[value]
        claim.study.tell(claim.trial.number, 1.0, TrialState.COMPLETE)
        claim.held.close()
    trials = search.trials("one")
    assert len(first) == 2 and finds_nothing_new(trials)
    assert not finds_nothing_new(trials[: NOTHING_NEW - 1])
    # With a budget in trials, the search continues although trials find nothing new.
    assert not _opened(tmp_path, Budget(len(trials) + 1, None), {}, spaces).is_complete


@pytest.mark.parametrize(
    ("state", "expected"),
    [(TrialState.PRUNED, (None, "after round 4 of 8")), (TrialState.COMPLETE, (0.25, ""))],
)
def test_equal_trials_have_equal_outcomes(tmp_path, state, expected):
    """Trials 0 and 1 run at once; the process of trial 1 dies; trial 2 starts later."""
    search = _opened(tmp_path, Budget(4, None), objective=_LOSS)
    study = optuna.load_study(study_name="one", storage=search._storage)
    for _ in range(2):
        study.enqueue_trial(_FIRST)
    first, second = (search.take() for _ in range(2))
    assert first.equal is second.equal is None
    first.trial.report(0.5, 4)
    value, reason = expected
    if reason:
        first.trial.set_user_attr(ENDED, reason)
    first.study.tell(0, value, state)
    second.held.close()
    first.held.close()
    for number in (1, 2):
        claim = search.take()
        assert (claim.trial.number, claim.equal.number) == (number, 0)
        assert search.outcome(claim, LongWork("tune", 1, "runs", visible=False)) == expected
        assert claim.reported() == {4: 0.5}
        claim.study.tell(number, value, state)
    result = SearchResult(search, {"one": search.trials("one")})
    if state is TrialState.COMPLETE:
        names = [result._run_names("one", trial) for trial in result.trials["one"]]
        assert names == [[f"{trial_name('one', 0)}/seed_3"]] * 3


def test_trials_do_not_use_runs_of_later_trials(tmp_path):
    search = _opened(tmp_path, Budget(2, None))
    optuna.load_study(study_name="one", storage=search._storage).enqueue_trial(_FIRST)
    first, second = (search.take() for _ in range(2))
    _finish(second)
    first.held.close()
    again = search.take()
    assert (again.trial.number, again.equal) == (0, None)


def test_trials_have_different_sampler_seeds():
    seeds = {sampler_seed(seed, trial) for seed in range(20) for trial in range(100)}
    assert len(seeds) == 2000 and all(0 <= seed < 2**32 for seed in seeds)


def test_incomplete_line_is_removed_from_journal(tmp_path):
    _searched(tmp_path, trials=1)
    with open(tmp_path / JOURNAL, "a") as journal:
        journal.write('{"op_code": 4, "worker_id": "dead')
    ended = _searched(tmp_path, trials=2)
    assert [(name, number) for name, number, _ in ended] == [("one", 1)]
    # Complete lines that Optuna cannot read raise an error.
    (tmp_path / JOURNAL).write_text("something else\n" * 9)
    with pytest.raises(UserError, match=f"{JOURNAL}: expected the journal of this search"):
        _opened(tmp_path, Budget(1, None))


def test_values_missing_in_first_trial_are_sampled(tmp_path):
    search = _opened(tmp_path, Budget(2, None), {"window": 7})
    claims = [search.take() for _ in range(2)]
    first, second = (claim.trial.params for claim in claims)
    assert first["window"] == 7
    assert first["client_learning_rate"] != second["client_learning_rate"]
    assert 0.01 <= first["client_learning_rate"] <= 1


# --- Trials report between rounds, and may end early


@pytest.fixture
def losses(tmp_path) -> Search:
    """A search that minimises the loss."""
    return _opened(tmp_path, Budget(20, None), {}, objective=_LOSS)


def _watch(claim: Claim, runs: int = 1, values=()) -> Watch:
    return Watch(claim, _LOSS, rounds=8, num_runs=runs, values=values)


def _evaluation(loss: float):
    return make_evaluation({"a": loss, "b": loss})


@pytest.mark.slow
def test_later_runs_report_mean_over_all_runs(losses):
    claim = losses.take()
    watch = _watch(claim, runs=2)
    watch.report(4, _evaluation(3.0))
    watch.report(8, _evaluation(1.0))
    watch = _watch(claim, runs=2, values=[1.0])
    watch.report(4, _evaluation(2.0))
    # Undefined evaluations are not reported.
    watch.report(6, _evaluation(math.inf))
    watch.report(8, _evaluation(0.5))
    assert claim.reported() == {4: 3.0, 8: 1.0, 12: 1.5, 16: 0.75}
    # A resumed run may report a round again.
    _watch(claim, runs=2).report(8, _evaluation(1.0))
    assert len(claim.reported()) == 4


@pytest.mark.nightly
def test_trials_worse_than_median_end_after_warm_up(losses):
    for k in range(5):
        claim = losses.take()
        for round_num in (2, 4):
            _watch(claim).report(round_num, _evaluation(1.0 + k))
        claim.study.tell(k, 1.0 + k)
        claim.held.close()
    worse, better, last = (losses.take() for _ in range(3))
    _watch(worse).report(2, _evaluation(9.0))
    with pytest.raises(Pruned, match="after round 4 of 8"):
        _watch(worse).report(4, _evaluation(3.5))
    _watch(better).report(4, _evaluation(2.5))
    # Pruning after the last round would save no time.
    _watch(last).report(8, _evaluation(9.0))
    worse.study.tell(worse.trial.number, state=TrialState.PRUNED)
    assert losses.trials("one", (TrialState.PRUNED,))[0].value == 3.5


# --- Some trials are rejected, and tables list the trials


def _outcome(tmp_path, first, *flags, objective=_LOSS, result=None):
    """Returns the outcome of a search's first trial, with the values `first`.

    Args:
        result: result.json for the trial's run, which is not trained.
    """
    arguments = ("--task=digits", "--num_clients=4", "--clients_per_round=3", "--rounds=1", *flags)
    arms = searched_arms(given(tune, *arguments))
    trainer: Any = SimpleNamespace(load_task=LoadedTasks())
    runs: Any = RunSet(tmp_path / "search", {"study": "tune"}, trainer, True, StopRequest())
    search = Search(arms, objective, (0,), Budget(20, None), runs, trainer, 1)
    with mock.patch.object(SearchedArm, "start", lambda *_: (first, [])):
        search.begin()
    write_json(RunFolder(tmp_path).result, result or {})
    made = SimpleNamespace(path=tmp_path, reason=None)
    claim: Any = search.take()
    with claim.held, mock.patch.object(runs, "make", lambda *_: [made]):
        return search.outcome(claim, LongWork("tune", 1, "runs", visible=False))


@pytest.mark.parametrize(
    ("text", "least", "few"),
    [
        ("worst", 4, None),
        ("domain(a)", 1, None),
        ("worst", 5, "fewer than --worst_min_examples=5 examples of each of a, b"),
        ("0.5*overall:loss+0.5*domain(b):loss", 1, "no examples of b"),
    ],
)
def test_infinite_metric_ends_its_trial_only(tmp_path, text, least, few):
    """Domain a has four examples and an infinite metric, and b has no examples."""
    report = make_evaluation({"a": 1.0, "b": math.nan})
    result = dataclasses.replace(report, worst_min_examples=least, split="heldout").to_json()
    for entry in (result["overall"], result["domains"]["a"], result["worst"]["accuracy"]):
        entry.update(dict.fromkeys({"accuracy", "value"} & {*entry}))
    objective = parse_objective(text, measures("loss", "accuracy"), ("a", "b"))
    flags = ("--algorithms=fed_avg", "--search=client_learning_rate=0.1..1")
    outcome = functools.partial(_outcome, tmp_path, {}, *flags, objective=objective, result=result)
    if few is None:
        assert outcome() == (None, "diverged: the objective is not finite")
    else:
        assert golden.refusal(outcome).endswith(f" heldout clients have {few}")


def test_incompatible_values_end_their_trial(tmp_path):
    value, reason = _outcome(
        tmp_path,
        {"clients_per_round": 2, "secure_min_clients": 3},
        *("--algorithms=fed_avg", "--aggregation=secure"),
        "--search=clients_per_round=2..4;secure_min_clients=2..3",
    )
    assert value is None
    assert reason.startswith("refused: --clients_per_round: expected at least --secure_min_")


@pytest.mark.nightly
def test_missing_file_ends_search(tmp_path):
    """The file is missing in every trial, so that the search cannot continue."""
    lambda_set = f"--lambda_set=hull:file={tmp_path / 'mixtures.json'}"
    flags = ("--algorithms=agnostic_fed_avg", "--search=client_learning_rate=0.1..1", lambda_set)
    with pytest.raises(UserError, match=r"mixtures\.json: expected a JSON file, found none"):
        _outcome(tmp_path, {"client_learning_rate": 0.5}, *flags)


def test_first_best_trial_is_marked_in_the_table():
    study = optuna.create_study(direction="maximize")
    objective = parse_objective("worst", measures("loss", "accuracy"))
    assert best_trial([], objective) is None
    for value in (0.5, 0.7, 0.7, None):
        trial = study.ask()
        trial.suggest_int("window", 5, 20)
        trial.report(0.5, 10)
        if value is None:
            trial.set_user_attr(ENDED, "diverged: round 11")
        study.tell(trial, value, state=TrialState.PRUNED if value is None else None)
    assert best_trial(study.trials, objective).number == 1
    assert best_trial(study.trials[:3], _LOSS).number == 0
    table = trial_table("mine", study.trials, objective)
    values = [row[table.columns.index("worst:accuracy, %")] for row in table.rows]
    assert [value.value for value in values] == [0.5, 0.7, 0.7, 0.5]
    assert [value.mark for value in values] == ["", "best", "", ""]
    assert "pruned: diverged: round 11" in table_text(table)
    assert described(0.5, "", objective) == "worst:accuracy 50.00%"
    assert described(None, "diverged: round 11", objective) == "diverged: round 11"
    assert described(None, "after round 3", objective) == "ended early: after round 3"
