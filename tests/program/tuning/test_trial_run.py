"""What a search is told between rounds, and which trials it ends."""

import dataclasses
import math

import pytest
from optuna.trial import TrialState

from tests.program.harness import make_evaluation, measures
from tff_agnostic.errors import UserError
from tff_agnostic.program.tuning.dimension import dimension
from tff_agnostic.program.tuning.objective import parse_objective
from tff_agnostic.program.tuning.space import searchable
from tff_agnostic.program.tuning.studies import SECONDS, Budget, Claim, Method, Studies
from tff_agnostic.program.tuning.trial_run import Pruned, Watch

_OBJECTIVE = parse_objective("overall:loss", measures("loss", "accuracy"))
_SPACES = {"mine": (dimension(searchable("digits")["q"], "0.1..5"),)}


@pytest.fixture
def studies(tmp_path) -> Studies:
    found = Studies(tmp_path, Method(False, seed=0, sampler="random", pruner="median", warm_up=4))
    found.add("mine", {})
    return found


def _next(studies: Studies) -> Claim:
    claim = studies.taken(_SPACES, Budget(20, None))
    assert claim is not None
    return claim


def _watch(claim: Claim, runs: int = 1) -> Watch:
    return Watch(claim, _OBJECTIVE, rounds=8, num_runs=runs)


def _evaluation(loss: float):
    return make_evaluation({"a": loss, "b": loss})


def test_later_runs_of_a_trial_report_the_mean_with_the_earlier_ones(studies):
    claim = _next(studies)
    watch = _watch(claim, runs=2)
    watch(4, _evaluation(3.0))
    watch(8, _evaluation(1.0))
    watch.end_run(_evaluation(1.0), "heldout")
    watch(4, _evaluation(2.0))
    watch(8, _evaluation(0.5))
    watch.end_run(_evaluation(0.5), "heldout")
    assert claim.reported() == {4: 3.0, 8: 1.0, 12: 1.5, 16: 0.75}
    assert watch.mean() == 0.75
    # A run that goes on evaluates some rounds again.
    again = _watch(claim, runs=2)
    again(8, _evaluation(1.0))
    assert len(claim.reported()) == 4
    assert claim.trial.user_attrs[SECONDS] >= 0


def test_the_median_of_the_others_ends_a_trial_from_the_warm_up_on(studies):
    for k in range(5):
        claim = _next(studies)
        watch = _watch(claim)
        for round_num in (2, 4, 8):
            watch(round_num, _evaluation(1.0 + k))
        studies.tell(claim, TrialState.COMPLETE, 1.0 + k)
        claim.held.close()
    worse, better, last = (_next(studies) for _ in range(3))
    _watch(worse)(2, _evaluation(9.0))
    with pytest.raises(Pruned, match="after round 4 of 8"):
        _watch(worse)(4, _evaluation(3.5))
    _watch(better)(4, _evaluation(2.5))
    # After the last round there is nothing to be saved.
    _watch(last)(8, _evaluation(9.0))
    studies.tell(worse, TrialState.PRUNED)
    assert studies.trials("mine", (TrialState.PRUNED,))[0].value == 3.5


def test_what_is_undefined_between_rounds_is_left_out_and_refused_at_the_end(studies):
    claim = _next(studies)
    watch = _watch(claim)
    watch(4, _evaluation(math.inf))
    assert claim.reported() == {}
    with pytest.raises(Pruned, match="diverged"):
        watch.end_run(_evaluation(math.inf), "heldout")
    worst = Watch(claim, parse_objective("worst", measures("loss", "accuracy")), 8, 1)
    with pytest.raises(UserError, match="none: of the heldout clients' domains a, b have fewer"):
        worst.end_run(dataclasses.replace(_evaluation(1.0), worst_min_examples=5), "heldout")
    absent = parse_objective("domain(b):loss+overall:loss", measures("loss"), ("a", "b"))
    with pytest.raises(UserError, match=r"no examples of b$"):
        Watch(claim, absent, 8, 1).end_run(make_evaluation({"a": 1.0, "b": math.nan}), "heldout")
