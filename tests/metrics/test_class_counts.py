"""Class counts, area under the ROC curve, entropy, and constant predictors' accuracies."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from tff_agnostic.computations.class_sums import ClassSums
from tff_agnostic.metrics.class_counts import (
    ClassReport,
    area_under_curve,
    class_report,
    constant_accuracies,
    entropy,
    no_better_than_majority,
)
from tff_agnostic.program.reports.claims import majority_sentence


def test_entropy_matches_scipy():
    counts = np.array([3.0, 0.0, 1.0])
    assert entropy(counts) == pytest.approx(stats.entropy(counts))
    assert str(entropy(np.array([5.0]))) == "0.0"


def test_area_with_ties_matches_sklearn():
    rng = np.random.default_rng(0)
    labels = (rng.uniform(size=400) < 0.3).astype(int)
    bins = np.clip(rng.normal(18 + 12 * labels, 9), 0, 49).astype(int)
    counts = np.stack([np.bincount(bins[labels == k], minlength=50) for k in (0, 1)])
    assert area_under_curve(counts) == pytest.approx(metrics.roc_auc_score(labels, bins))
    assert area_under_curve([[0, 3], [0, 0]]) is None
    assert area_under_curve([[3, 0], [0, 2]]) == 1.0


def test_class_report_has_the_counts():
    rng = np.random.default_rng(1)
    labels, answers = rng.integers(3, size=(2, 60))
    table = metrics.confusion_matrix(labels, answers)
    noisy = table.copy()
    noisy[0, 1] = -4
    result = class_report(("a", "b"), ClassSums(confusion=np.stack([table, noisy])))
    assert result.counts["a"] == np.bincount(labels).tolist()
    assert result.confusion["b"][0][1] == 0
    assert [*result.to_json()] == ["class_counts", "confusion"]
    by_class = np.stack([[table.sum(axis=1), table.sum(axis=0), np.diag(table)]])
    many = class_report(("a",), ClassSums(by_class=by_class))
    assert many.counts == {"a": result.counts["a"]}
    assert many.by_class["a"] == {
        "examples": np.bincount(labels).tolist(),
        "answers": np.bincount(answers).tolist(),
        "right_answers": np.diag(table).tolist(),
    }
    assert class_report(("a",), ()) == ClassReport()


def test_constant_accuracy_is_the_largest_share():
    counts = {"en": [945, 55], "es": [61, 39], "none": [0, 0], "one class": [7, 0]}
    assert constant_accuracies(counts) == pytest.approx({"en": 0.945, "es": 0.61})
    result = no_better_than_majority(
        counts, {"en": 0.942, "es": 0.9, "none": None, "one class": 0.5}
    )
    assert result == {"en": (0.942, 0.945)}
    # Because of rounding, the mean of three accuracies of 0.8 is above 0.8.
    mean = np.mean([0.8] * 3)
    assert mean > 0.8 and list(no_better_than_majority({"a": [8, 2]}, {"a": mean})) == ["a"]
    assert majority_sentence(result, 4) == (
        "accuracy is not above that of always answering the most frequent class in 1 of 4 domains "
        "(en: 94.2% against 94.5%)"
    )
