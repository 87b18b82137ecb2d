"""Trials that are taken once, whoever asks and however processes end."""

import dataclasses
from typing import Any, Callable, Optional

import pytest
from optuna.trial import TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.studies.optuna_studies import (
    FILE,
    NOTHING_NEW,
    SECONDS,
    Budget,
    Claim,
    Method,
    Studies,
    finds_nothing_new,
    sampler_seed,
)
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.search_space import dimension, searchable

_SETTINGS = searchable("digits")
_NO_TRAINER: Any = None
_DIMENSIONS = tuple(
    dimension(_SETTINGS[flag], text)
    for flag, text in (("client_learning_rate", "log:0.01..1"), ("window", "5..20"))
)
_SPACES = {"one": _DIMENSIONS, "two": _DIMENSIONS}
_METHOD = Method(higher_is_better=True, seed=3, sampler="tpe", pruner="median", warm_up=2)
_FIRST = {"client_learning_rate": 0.5, "window": 7}


def _opened(folder, method=_METHOD, kind=Studies) -> Studies:
    runs: RunSet = RunSet(folder, {"study": "tune"}, _NO_TRAINER, True, StopRequest())
    return kind(folder, method, runs)


def _train(studies: Studies, claim: Claim, seconds: float) -> None:
    """Writes the time of a trial's run."""
    path = studies._runs.path(f"{claim.run_name}/seed_0")
    path.mkdir(parents=True)
    write_json(path / "seconds.json", {"seconds": seconds})
    claim.trial.set_user_attr(SECONDS, seconds)


def _studies(folder, first=_FIRST) -> Studies:
    studies = _opened(folder)
    for name in _SPACES:
        studies.add(name, first)
    return studies


def _value(claim: Claim) -> float:
    rate, window = (claim.trial.params[of.setting.name] for of in _DIMENSIONS)
    return -abs(rate - 0.2) - 0.01 * window


def _finish(studies: Studies, claim: Claim) -> tuple:
    studies.tell(claim, TrialState.COMPLETE, _value(claim))
    claim.held.close()
    return claim.name, claim.trial.number, claim.trial.params


def _search(folder, trials: int, restart_after: int = 1_000, spaces=_SPACES) -> list[tuple]:
    """All trials of a search, by processes that each see so many of them."""
    found: list[tuple] = []
    studies = _studies(folder)
    while (claim := studies.taken(spaces, Budget(trials, None))) is not None:
        found.append(_finish(studies, claim))
        if len(found) % restart_after == 0:
            studies = _studies(folder)
    return found


@pytest.mark.nightly
def test_every_algorithm_has_the_same_budget_and_the_given_settings_first(tmp_path):
    found = _search(tmp_path, trials=3)
    assert [(name, number) for name, number, _ in found] == [
        *(("one", 0), ("two", 0), ("one", 1), ("two", 1), ("one", 2), ("two", 2))
    ]
    assert [params for _, number, params in found if number == 0] == [_FIRST, _FIRST]
    for _, _, params in found:
        assert 0.01 <= params["client_learning_rate"] <= 1 and 5 <= params["window"] <= 20


@pytest.mark.nightly
def test_what_is_drawn_does_not_depend_on_interruptions(tmp_path):
    """Also once the sampler has more trials than it draws at random."""
    folders = [tmp_path / name for name in ("whole", "parts")]
    for folder in folders:
        folder.mkdir()
    one = {"one": _DIMENSIONS}
    whole = _search(folders[0], trials=7, spaces=one)
    assert whole == _search(folders[1], 7, restart_after=3, spaces=one)
    assert len({tuple(params.items()) for _, _, params in whole}) == 7


@pytest.mark.nightly
def test_a_process_that_dies_leaves_its_trial_to_the_next(tmp_path):
    first, second = _studies(tmp_path), _studies(tmp_path)
    budget = Budget(2, None)
    claims = [first.taken(_SPACES, budget), second.taken(_SPACES, budget)]
    claims += [first.taken(_SPACES, budget), second.taken(_SPACES, budget)]
    assert [(c.name, c.trial.number) for c in claims] == [
        *(("one", 0), ("two", 0), ("one", 1), ("two", 1))
    ]
    # Four are taken, none has ended: nothing is left for anybody.
    assert first.taken(_SPACES, budget) is second.taken(_SPACES, budget) is None
    claims[2].trial.report(0.25, 1)
    # What the kernel does when a process is killed.
    claims[2].held.close()
    again = second.taken(_SPACES, budget)
    assert (again.name, again.trial.number) == ("one", 1)
    assert again.trial.params == claims[2].trial.params
    assert again.reported() == {1: 0.25}
    assert second.taken(_SPACES, budget) is None
    for claim in (claims[0], claims[1], claims[3], again):
        _finish(second, claim)
    assert second.taken(_SPACES, budget) is None
    for name in _SPACES:
        states = [t.state for t in second.trials(name)]
        assert states == [TrialState.COMPLETE] * 2


class _SlowToLook(Studies):
    """While this process looks which trials are left, another one ends its own."""

    meanwhile: Optional[Callable[[], None]] = None

    def trials(self, name, states=None):
        found = super().trials(name, states)
        if states == (TrialState.RUNNING,) and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return found


@pytest.mark.nightly
def test_a_trial_that_ends_while_another_process_looks_is_not_taken_again(tmp_path):
    first, second = _studies(tmp_path), _opened(tmp_path, kind=_SlowToLook)
    spaces, budget = {"one": _DIMENSIONS}, Budget(2, None)
    claim = first.taken(spaces, budget)
    second.meanwhile = lambda: (_finish(first, claim), None)[1]
    other = second.taken(spaces, budget)
    assert second.meanwhile is None
    assert (claim.trial.number, other.trial.number) == (0, 1)


@pytest.mark.nightly
def test_what_is_given_is_tried_whatever_happened_before(tmp_path):
    """A process died between the study and its first trial; then that trial failed."""
    _opened(tmp_path).add("one", {})
    spaces, budget = {"one": _DIMENSIONS}, Budget(3, None)
    tried = []
    for _ in range(2):
        studies = _studies(tmp_path)
        claim = studies.taken(spaces, budget)
        tried.append(claim.trial.params)
        studies.tell(claim, TrialState.FAIL)
        claim.held.close()
    assert tried == [_FIRST, _FIRST]
    studies = _studies(tmp_path)
    _finish(studies, studies.taken(spaces, budget))
    # Once it is there, it is not added again.
    other = _studies(tmp_path).taken(spaces, budget)
    assert other.trial.params != _FIRST


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_death_between_two_draws_changes_no_value(tmp_path, sampler):
    found = []
    for name, parts in (("whole", [2]), ("parts", [1, 2])):
        folder = tmp_path / name
        folder.mkdir()
        for count in parts:
            studies = _opened(folder, dataclasses.replace(_METHOD, sampler=sampler))
            studies.add("one", {})
            claim = studies.taken({"one": _DIMENSIONS[:count]}, Budget(1, None))
            claim.held.close()
        found.append(claim.trial.params)
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.nightly
def test_a_budget_of_time_ends_where_nothing_is_new(tmp_path):
    """Of two choices there are two trainings, and time for a million."""
    spaces = {"one": (dimension(_SETTINGS["server_optimizer"], "choice:sgd,adam"),)}
    studies = _opened(tmp_path)
    studies.add("one", {})
    seen: list = []
    while (claim := studies.taken(spaces, Budget(None, 1e6))) is not None:
        if claim.trial.params not in seen:
            _train(studies, claim, 1.0)
            seen.append(claim.trial.params)
        studies.tell(claim, TrialState.COMPLETE, 1.0)
        claim.held.close()
    trials = studies.trials("one")
    assert len(seen) == 2 and finds_nothing_new(trials)
    assert not finds_nothing_new(trials[: NOTHING_NEW - 1])
    assert all(SECONDS not in trial.user_attrs for trial in trials[-NOTHING_NEW:])
    # A count is met all the same.
    assert studies.with_budget(["one"], Budget(len(trials) + 1, None)) == ["one"]


@pytest.mark.nightly
def test_a_trial_that_failed_is_replaced(tmp_path):
    studies = _studies(tmp_path, first={})
    spaces = {"one": _DIMENSIONS}
    claim = studies.taken(spaces, Budget(1, None))
    studies.tell(claim, TrialState.FAIL)
    claim.held.close()
    other = studies.taken(spaces, Budget(1, None))
    assert (other.trial.number, other.trial.params != claim.trial.params) == (1, True)
    _finish(studies, other)
    assert studies.taken(spaces, Budget(1, None)) is None


@pytest.mark.nightly
def test_a_budget_of_time_is_shared_evenly(tmp_path):
    studies = _studies(tmp_path)
    seconds = {"one": [30.0, 5.0], "two": [10.0, 10.0, 10.0, 10.0]}
    order = []
    budget = Budget(None, 60.0)
    while (claim := studies.taken(_SPACES, budget)) is not None:
        order.append(claim.name)
        _train(studies, claim, seconds[claim.name][claim.trial.number])
        _finish(studies, claim)
    # Whoever has had less time is next; nobody begins a trial after half of it.
    assert order == ["one", "two", "two", "two"]
    assert studies.with_budget(_SPACES, Budget(1, 1000.0)) == []
    assert studies.with_budget(_SPACES, Budget(4, 100.0)) == ["one", "two"]


def test_every_trial_has_a_seed_of_its_own():
    seeds = {sampler_seed(seed, trial) for seed in range(20) for trial in range(100)}
    assert len(seeds) == 2000 and all(0 <= seed < 2**32 for seed in seeds)


def test_file_that_is_no_journal_is_refused(tmp_path):
    studies = _opened(tmp_path)
    (tmp_path / FILE).write_text("something else\n" * 9)
    with pytest.raises(UserError, match=f"{FILE}: expected the journal of this search"):
        Studies(studies._runs.folder, _METHOD)


def test_line_of_dead_process_is_removed_from_journal(tmp_path):
    _search(tmp_path, trials=1)
    with open(tmp_path / FILE, "a") as journal:
        journal.write('{"op_code": 4, "worker_id": "dead')
    found = _search(tmp_path, trials=2)
    assert [(name, number) for name, number, _ in found] == [("one", 1), ("two", 1)]


def test_of_a_first_trial_the_rest_is_drawn(tmp_path):
    studies = _opened(tmp_path)
    studies.add("one", {"window": 7})
    claims = [studies.taken({"one": _DIMENSIONS}, Budget(2, None)) for _ in range(2)]
    rates, windows = (
        [claim.trial.params[of.setting.name] for claim in claims] for of in _DIMENSIONS
    )
    assert windows[0] == 7 and rates[0] != rates[1]
    assert all(0.01 <= rate <= 1 for rate in rates)
