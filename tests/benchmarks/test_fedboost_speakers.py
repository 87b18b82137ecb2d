"""FedBoost on the words of a text: what is read from base predictors, and whole rounds by NumPy."""

import numpy as np
import pytest

from benchmarks.fedboost_speakers.measure import final_loss, loss, main, text_of
from tff_agnostic.base_predictors.counting import smoothed_scores
from tff_agnostic.base_predictors.files import PredictorFile, write_predictors
from tff_agnostic.boosting.alpha import BoostOptions

_COUNTS = np.array([[7, 3, 0, 9], [2, 30, 4, 4], [1, 1, 5, 3]])
_FILE = PredictorFile(
    names=("a", "b", "c"),
    arrays=(np.stack([smoothed_scores(row, 0.1) for row in _COUNTS]),),
    fingerprint={},
    about={"smoothing_share": 0.1, "examples": _COUNTS.sum(axis=1).tolist()},
)


def test_the_words_of_the_text_are_worked_out_again():
    text = text_of(_FILE)
    np.testing.assert_allclose(text.words, _COUNTS.sum(axis=0) / _COUNTS.sum(), atol=1e-7)
    np.testing.assert_allclose(text.shares, _COUNTS.sum(axis=1) / _COUNTS.sum())


def test_rounds_of_all_predictors_are_those_of_numpy():
    text, alpha = text_of(_FILE), np.full(3, 1 / 3)
    h = 0.9 * _COUNTS / _COUNTS.sum(axis=1, keepdims=True) + 0.1 / 4
    for _ in range(20):
        alpha = alpha * np.exp(0.5 * h @ (text.words / (alpha @ h)))
        alpha /= alpha.sum()
    options = BoostOptions(predictor_sampling="none", alpha_learning_rate=0.5)
    expected = -text.words @ np.log(alpha @ h)
    assert final_loss(text, options, 0, 20) == pytest.approx(expected, abs=1e-5)
    assert loss(text, alpha) == pytest.approx(expected, abs=1e-6)


def test_the_command_prints_a_table(tmp_path, capsys):
    write_predictors(tmp_path / "speakers.npz", _FILE)
    main(
        [
            f"--predictors={tmp_path / 'speakers.npz'}",
            "--estimators=masked",
            "--seeds=2",
            "--rounds=2",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["estimator", "uniform", "weighted"]
    assert [line.split()[0] for line in lines[4:]] == ["masked"]
