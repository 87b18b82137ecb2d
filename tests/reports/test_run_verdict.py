"""The verdict of a run with made-up numbers, whose intervals have closed forms."""

import dataclasses

import numpy as np
from scipy import stats

from tests.support import golden
from tests.support import pages as made_up
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
    # The noise has exactly these standard deviations; the value over all examples has no noise.
    noise = error * (noise - noise.mean(0)) / noise.std(0, ddof=1) * ([1] * len(_NAMES) + [0])
    drawn = Resampled({"accuracy": np.array([*accuracies.values(), 0.7]) + noise}, _CLIENTS)
    measures = {"accuracy": Measure("accuracy", Unit.SHARE, True)}
    return RunRecord(result, {}, {}, {}, measures, resampled=drawn if resampled else None)


def _ends(change: float) -> str:
    """Returns Student's interval from n / (n - 1) times the variance, at the level of 4 domains."""
    deviation = (_ERROR**2 * 25 / 24) ** 0.5
    half = stats.t.ppf(1 - 0.025 / 4, 1 / (1 / 24 + 1 / 199)) * deviation
    return f"95% interval {100 * (change - half):+.1f} to {100 * (change + half):+.1f}"


@golden.text
def test_verdicts_have_known_sentences():
    low = {**_ACCURACIES, "few": 0.1}
    unsure = _run(counts={})
    few_clients = dataclasses.replace(unsure.resampled, clients=np.ones(5))
    single = {name: [10 * (k == i) for k in range(4)] for i, name in enumerate(_NAMES)}
    private = {"privacy": {"epsilon": 1.0, "evaluation": {"epsilon": 1.0}}}
    runs = {
        "no worse domain": _run({**_ACCURACIES, "bad": 0.9}),
        "a worst domain without an interval": _run(low),
        "few clients in every domain": dataclasses.replace(unsure, resampled=few_clients),
        "no resampled clients": _run(resampled=False, counts={}),
        "a private evaluation": _run(resampled=False, counts={}, **private),
        "domains of a single class": _run(counts=single),
    }
    return "\n\n".join("\n".join([f"# {name}", *run_verdict(run)]) for name, run in runs.items())


def test_domains_have_simultaneous_student_intervals():
    text = " ".join(run_verdict(_run()))
    for change in (-0.3, -0.2, 0.3):
        assert f"{100 * change:+.1f} points ({_ends(change)})" in text


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


def test_single_or_uncounted_domain_is_not_the_worst():
    low = _run({**_ACCURACIES, "few": 0.1}, not_counted=["few"])
    # The interval is that of three domains.
    assert run_verdict(low)[0] == (
        "The worst domain is bad: accuracy 40.0% against 70.0% on all examples, -30.0 points (95% "
        "interval -38.0 to -22.0)."
    )
    result = made_up.result(["all of them"])
    measures = {"loss": Measure("loss", Unit.NONE, False)}
    lines = run_verdict(RunRecord(result, {}, {}, {}, measures))
    assert not any("worst domain" in line for line in lines)
    two = made_up.result(["a", "b"])
    two["domains"]["a"]["loss"], two["domains"]["b"]["loss"] = 0.5, 2.0
    (worst, *_) = run_verdict(RunRecord(two, {}, {}, {}, measures))
    assert worst.startswith("The worst domain is b: loss 2.000 against")
