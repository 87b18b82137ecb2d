"""What follows from trials made by hand, and the sentence that says it."""

import math

import numpy as np
import pytest

from tests import golden
from tests.run.harness import MEASURES
from tff_agnostic.studies.frontier import Outcome, check_time, judge, sentence

_LABELS = {"fed_avg": "FedAvg", "agnostic_fed_avg": "AgnosticFedAvg"}


def _around(mean, std=0.02):
    """Three trials with this mean and sample standard deviation."""
    return mean + np.array([-std, 0.0, std])


def _judge(means, fed_avg, agnostic, higher_is_better=True, std=0.02):
    mixtures = np.array([_around(mean, std) for mean in means])
    algorithms = {"fed_avg": _around(fed_avg, std), "agnostic_fed_avg": _around(agnostic, std)}
    return judge(mixtures, 0, algorithms, higher_is_better)


def _said(verdict, measure="accuracy", split="test", best="b only"):
    return sentence(verdict, best, 3, _LABELS, MEASURES[measure], split)


def test_one_helps_and_the_algorithm_found_it():
    verdict = _judge([0.6, 0.7, 0.8], fed_avg=0.61, agnostic=0.79)
    assert (verdict.outcome, verdict.best) == (Outcome.FOUND, 2)
    assert verdict.gain == pytest.approx(0.2)
    assert verdict.best_end.spread == pytest.approx(0.02)
    assert verdict.found_by == ("agnostic_fed_avg",)
    assert verdict.gaps == pytest.approx({"fed_avg": 0.19, "agnostic_fed_avg": 0.01})
    assert _said(verdict) == (
        "A mixture helps, and AgnosticFedAvg found it: accuracy of the worst domain on the test "
        "clients is 80.0% (2.0) with the best of 3 mixtures (b only), against 60.0% (2.0) with the "
        "training mixture; FedAvg ended at 61.0% (2.0) and missed it by 19.0 points; "
        "AgnosticFedAvg ended at 79.0% (2.0)."
    )


def test_one_helps_and_was_missed_by_so_much():
    verdict = _judge([0.6, 0.8, 0.7], fed_avg=0.61, agnostic=0.77)
    assert (verdict.outcome, verdict.best, verdict.found_by) == (Outcome.MISSED, 1, ())
    said = _said(verdict, split="heldout")
    assert said.startswith("A mixture helps, and it was missed: accuracy of the worst domain on ")
    assert said.endswith("; AgnosticFedAvg ended at 77.0% (2.0) and missed it by 3.0 points.")
    assert "on the heldout clients" in said


def test_no_mixture_helps():
    # By less than the standard deviation.
    verdict = _judge([0.6, 0.615, 0.5], fed_avg=0.6, agnostic=0.55)
    assert (verdict.outcome, verdict.best) == (Outcome.NONE_HELPS, 1)
    assert verdict.found_by == ("fed_avg",)
    assert _said(verdict, best="25% of the way to b") == (
        "No mixture helps by more than the standard deviation over the seeds: accuracy of the "
        "worst domain on the test clients is 61.5% (2.0) with the best of 3 mixtures (25% of the "
        "way to b), against 60.0% (2.0) with the training mixture; FedAvg ended at 60.0% (2.0); "
        "AgnosticFedAvg ended at 55.0% (2.0), worse than the best by 6.5 points."
    )


def test_the_larger_standard_deviation_is_what_a_gain_has_to_exceed():
    for spreads in ((0.15, 0.01), (0.01, 0.15)):
        mixtures = np.array([_around(mean, std) for mean, std in zip((0.6, 0.7), spreads)])
        assert judge(mixtures, 0, {}, True).outcome is Outcome.NONE_HELPS
    mixtures = np.array([_around(0.6, 0.09), _around(0.7, 0.01)])
    assert judge(mixtures, 0, {"fed_avg": _around(0.695)}, True).outcome is Outcome.FOUND
    # Found is within that of the best mixture, however noisy the algorithm is.
    assert judge(mixtures, 0, {"fed_avg": _around(0.68, 0.3)}, True).outcome is Outcome.MISSED


def test_the_training_mixture_is_itself_the_best():
    verdict = _judge([0.7, 0.6, 0.7], fed_avg=0.7, agnostic=0.6)
    assert (verdict.outcome, verdict.best, verdict.gain) == (Outcome.NONE_HELPS, 0, 0)
    assert _said(verdict) == (
        "No mixture helps: accuracy of the worst domain on the test clients is 70.0% (2.0) with "
        "the training mixture, the best of 3; FedAvg ended at 70.0% (2.0); AgnosticFedAvg ended "
        "at 60.0% (2.0), worse than the best by 10.0 points."
    )


@pytest.mark.parametrize(
    ("means", "outcome"), [([0.6, 0.7], Outcome.FOUND), ([0.7, 0.6], Outcome.NONE_HELPS)]
)
def test_an_algorithm_may_be_better_than_the_grid(means, outcome):
    verdict = _judge(means, fed_avg=0.65, agnostic=0.8)
    assert verdict.outcome is outcome
    assert verdict.found_by == ("agnostic_fed_avg",)
    assert verdict.gaps["agnostic_fed_avg"] == pytest.approx(-0.1)
    assert _said(verdict).endswith(
        "AgnosticFedAvg ended at 80.0% (2.0), better than any mixture by 10.0 points."
    )


def test_an_algorithm_above_the_grid_says_that_the_grid_may_be_too_coarse():
    beyond = "No mixture of this grid helps, but AgnosticFedAvg is better than all of them, and a "
    verdict = _judge([0.7, 0.6], fed_avg=0.65, agnostic=0.8)
    assert _said(verdict).startswith(f"{beyond}finer grid (--grid_points) may have one that does: ")
    both = _said(_judge([0.7, 0.6], fed_avg=0.75, agnostic=0.8))
    assert "helps, but FedAvg and AgnosticFedAvg are better than all of them" in both
    # By less than its own noise it is not; and where a mixture helps, the grid is fine enough.
    noisy = judge(np.array([_around(0.7, 0.01)]), 0, {"fed_avg": _around(0.75, 0.2)}, True)
    said = sentence(noisy, "", 1, {"fed_avg": "FedAvg"}, MEASURES["accuracy"], "test")
    assert said.startswith("No mixture helps: ")
    assert "of this grid" not in _said(_judge([0.6, 0.7], fed_avg=0.65, agnostic=0.8))


def test_of_losses_the_lowest_is_best():
    verdict = _judge([1.0, 0.7, 1.2], fed_avg=1.0, agnostic=0.71, higher_is_better=False)
    assert (verdict.outcome, verdict.best) == (Outcome.FOUND, 1)
    assert verdict.gain == pytest.approx(0.3)
    assert verdict.gaps == pytest.approx({"fed_avg": 0.3, "agnostic_fed_avg": 0.01})
    assert "is 0.700 (0.020) with the best of 3 mixtures (b only)" in _said(verdict, "loss")
    assert "is 0.70 (0.02) with the best" in _said(verdict, "perplexity")


def test_of_one_seed_the_noise_is_not_known():
    verdict = judge(np.array([[0.6], [0.61]]), 0, {"fed_avg": np.array([0.605])}, True)
    assert (verdict.outcome, verdict.best, verdict.found_by) == (Outcome.MISSED, 1, ())
    assert math.isnan(verdict.best_end.spread)
    said = sentence(verdict, "b only", 2, {"fed_avg": "FedAvg"}, MEASURES["accuracy"], "test")
    assert said.endswith(
        "is 61.0% with the best of 2 mixtures (b only), against 60.0% with the training mixture; "
        "FedAvg ended at 60.5% and missed it by 0.5 points (one seed: the noise is not known)."
    )


def test_mixtures_without_a_counted_domain_are_not_the_best():
    mixtures = np.array([[0.6, 0.6], [np.nan, 0.9], [0.7, 0.7]])
    assert judge(mixtures, 0, {}, True).best == 2
    verdict = judge(mixtures * [[np.nan], [1], [1]], 0, {"fed_avg": np.array([0.6, 0.6])}, True)
    assert verdict.outcome is Outcome.UNKNOWN
    assert _said(verdict, split="heldout") == (
        "Nothing is known of the worst domain: no domain has enough heldout examples in every "
        "trial."
    )


def test_what_has_become_infinite_is_worst():
    mixtures = np.array([[np.inf, np.inf], [3.0, 3.0], [np.inf, 1.0]])
    verdict = judge(mixtures, 0, {"fed_avg": np.array([np.inf, np.inf])}, False)
    assert (verdict.outcome, verdict.best, verdict.gain) == (Outcome.MISSED, 1, math.inf)


def test_a_grid_that_takes_too_long():
    check_time(1.0, seconds=36.0, trials_left=99)
    assert golden.refusal(check_time, 1.0, seconds=36.0, trials_left=129).startswith(
        "--max_hours: expected about 1.30 for 130 trials, the first of which took 36.0 s, found 1; "
        "fewer --grid_points or --trials take less, and --resume goes on after what was trained"
    )
