"""The verdict of a run with made-up numbers, whose intervals have closed forms."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tests.reports import made_up
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Resampled
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.run_record import RunRecord
from tff_agnostic.program.reports.run_verdict import run_verdict

_NAMES = ("good", "open", "bad", "few")
# A constant answer has accuracy 60% in each domain.
_COUNTS = {name: [60, 40] for name in _NAMES}
_ACCURACIES = {"good": 0.9, "open": 0.62, "bad": 0.4, "few": 0.9}
_CLIENTS = np.array([25.0, 25.0, 25.0, 2.0, 77.0])
_ERROR = 0.03


def _run(accuracies=_ACCURACIES, counts=_COUNTS, error=_ERROR, resampled=True, **changes):
    result = made_up.result(_NAMES, class_counts=counts, **changes)
    for name, accuracy in accuracies.items():
        result["domains"][name]["accuracy"] = accuracy
    result["overall"]["accuracy"] = 0.7
    noise = np.random.default_rng(0).normal(size=(200, len(_NAMES) + 1))
    # Standard deviations are exact, and the value over all examples does not vary.
    noise = error * (noise - noise.mean(0)) / noise.std(0, ddof=1) * ([1] * len(_NAMES) + [0])
    drawn = Resampled({"accuracy": np.array([*accuracies.values(), 0.7]) + noise}, _CLIENTS)
    measures = {"accuracy": Measure("accuracy", Unit.SHARE, True)}
    return RunRecord(result, {}, {}, {}, measures, resampled=drawn if resampled else None)


def _ends(change: float) -> str:
    """Returns Student's interval from n / (n - 1) times the variance, at the level of 4 domains."""
    deviation = (_ERROR**2 * 25 / 24) ** 0.5
    half = stats.t.ppf(1 - 0.025 / 4, 1 / (1 / 24 + 1 / 199)) * deviation
    return f"95% interval {100 * (change - half):+.1f} to {100 * (change + half):+.1f}"


def test_verdict_names_worse_better_and_uncertain_domains():
    worst, overall, worse, better, unknown, few, largest, scope, note, what_next = run_verdict(
        _run()
    )
    assert worst == (
        "The worst domain is bad: accuracy 40.0% against 70.0% on all examples, -30.0 points "
        f"({_ends(-0.3)})."
    )
    assert overall.endswith(": accuracy 70.0% against 60.0%, +10.0 points.")
    assert f"(accuracy of bad: 40.0% against 60.0%, -20.0 points ({_ends(-0.2)}))" in worse
    assert f"(accuracy of good: 90.0% against 60.0%, +30.0 points ({_ends(0.3)}))" in better
    assert "No significant difference in 1 of 4 domains" in unknown
    better_only = run_verdict(_run({**_ACCURACIES, "bad": 0.9}))
    assert not any("worse off" in line for line in better_only)
    assert (
        few
        == "No interval in 1 of 4 domains (few: too few test clients for an interval (worth 2.0))."
    )
    assert largest.startswith(
        "Largest change for the better: few: 90.0% against 60.0%, +30.0 points (too few "
    )
    assert "of 95%, over other test clients; those of the domains hold for all" in scope
    assert "equal size" in note and what_next.startswith("Next: ")
    assert (
        "1 domain without an interval needs more test clients" in what_next
        and "./run compare" in what_next
    )


def test_worst_domain_with_interval_is_named_too():
    first, second, *_ = run_verdict(_run({**_ACCURACIES, "few": 0.1}))
    assert first == (
        "The worst domain is few: accuracy 10.0% against 70.0% on all examples, -60.0 points "
        "(too few test clients for an interval (worth 2.0))."
    )
    assert second.startswith("Of the domains with an interval the worst is bad: accuracy 40.0% ag")
    # A domain with few examples is not called the worst, and has no interval either.
    worst, *_, what_next = run_verdict(_run({**_ACCURACIES, "few": 0.1}, not_counted=["few"]))
    assert "is bad" in worst and "1 domain without an interval" in what_next


def test_constant_worst_domain_has_wilson_interval():
    run = _run({**_ACCURACIES, "bad": 0.0})
    drawn = run.resampled.values["accuracy"]
    drawn[:, 2] = 0.0
    # The value over all examples varies, which must not change the domain's interval.
    drawn[:, -1] = 0.7 + 0.01 * np.random.default_rng(1).normal(size=len(drawn))
    z_squared = stats.norm.ppf(1 - 0.025 / 4) ** 2
    high = 100 * (z_squared / (25 + z_squared) - 0.7)
    assert f"-70.0 points (95% interval -70.0 to {high:+.1f})" in run_verdict(run)[0]


def test_equal_clients_have_wilson_interval():
    # The lower end of Wilson's interval for 25 right clients of 25 is 1 / (1 + z^2 / 25).
    low = 100 / (1 + stats.norm.ppf(1 - 0.025 / 4) ** 2 / 25) - 60
    expected = f"good: 100.0% against 60.0%, +40.0 points (95% interval {low:+.1f} to +40.0)"
    assert expected in " ".join(run_verdict(_run({**_ACCURACIES, "good": 1.0}, error=0.0)))


def test_without_any_interval_no_difference_is_certain():
    run = _run(counts={})
    few = dataclasses.replace(run.resampled, clients=np.ones(5))
    worst, scope, note, what_next = run_verdict(dataclasses.replace(run, resampled=few))
    assert "too few test clients for an interval (worth 1.0)" in worst
    assert scope.startswith("There is no interval: no difference is certain. There is one seed")
    assert "equal size" in note and "4 domains without an interval need more" in what_next


_PRIVATE = {"privacy": {"epsilon": 1.0, "evaluation": {"epsilon": 1.0}}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "There are no intervals, because the test clients were not resampled."),
        (_PRIVATE, "There are no intervals for other test clients: private evaluations do not"),
    ],
)
def test_missing_intervals_have_a_reason(changes, reason):
    worst, *lines = run_verdict(_run(resampled=False, counts={}, **changes))
    assert worst.endswith("70.0% on all examples, -30.0 points (no interval).")
    assert lines[0].startswith(reason) and lines[-1].startswith("Next: ")
    assert not any("better than" in line or "worse than" in line for line in lines[:-1])


def test_single_class_domains_lack_majority_warnings():
    counts = {name: [10 * (k == i) for k in range(4)] for i, name in enumerate(_NAMES)}
    worst, overall, *rest = run_verdict(_run(counts=counts))
    assert "is bad" in worst and "70.0% against 25.0%" in overall
    assert not any("most frequent" in line for line in rest)


def test_single_domain_is_not_the_worst():
    result = made_up.result(["all of them"])
    measures = {"loss": Measure("loss", Unit.NONE, False)}
    lines = run_verdict(RunRecord(result, {}, {}, {}, measures))
    assert not any("worst domain" in line for line in lines)
    two = made_up.result(["a", "b"])
    two["domains"]["a"]["loss"], two["domains"]["b"]["loss"] = 0.5, 2.0
    (worst, *_) = run_verdict(RunRecord(two, {}, {}, {}, measures))
    assert worst.startswith("The worst domain is b: loss 2.000 against")
