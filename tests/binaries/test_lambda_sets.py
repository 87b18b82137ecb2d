"""--lambda_set in training, evaluation and resumed runs."""

import csv
import json

import numpy as np
import pytest

from binaries import evaluate, train
from tests.support import golden
from tests.support.commands import TOY
from tff_agnostic.base.files import read_json

_NAMES = ("center -1.0", "center -0.4", "center +0.3", "center +0.7", "center +1.0")
_RUN = (*TOY, "--rounds=3", "--output_dir=run")
_MIXTURES = {"low": {_NAMES[0]: 0.5, _NAMES[1]: 0.5}, "high": {_NAMES[4]: 1.0}}
_HULL = ("--algorithm=stochastic_afl", "--lambda_set=hull:file=mixtures.json")


def _worst(path) -> dict:
    return read_json(path)["worst_mixture"]


def _losses(path) -> np.ndarray:
    domains = read_json(path)["domains"]
    return np.array([domains[name]["loss"] for name in domains])


def _last_lambda(folder) -> np.ndarray:
    with open(folder / "metrics.csv") as file:
        last = list(csv.DictReader(file))[-1]
    return np.array([float(v) for k, v in last.items() if k.startswith("lambda/")])


@pytest.mark.nightly
def test_lambda_and_worst_mixture_stay_within_the_box(call, folder):
    box = "--lambda_set=box:lower=0.1,upper=0.4"
    outcome = call.ok(train, *_RUN, *box, "--lambda_learning_rate=10")
    lambda_ = _last_lambda(folder / "run")
    np.testing.assert_allclose([lambda_.sum(), lambda_.min(), lambda_.max()], [1, 0.1, 0.4])
    worst = _worst(folder / "run" / "result.json")
    # The worst mixture gives the worst domain weight 0.4, the next one 0.3, and the others 0.1.
    first, second, *others = np.sort(_losses(folder / "run" / "result.json"))[::-1]
    assert worst["loss"] == pytest.approx(0.4 * first + 0.3 * second + 0.1 * sum(others), rel=1e-5)
    assert sorted(worst["lambda"].values()) == pytest.approx([0.1, 0.1, 0.1, 0.3, 0.4])
    assert f"worst mixture of Lambda: loss {worst['loss']:.4g} at " in outcome.out


@pytest.mark.slow
def test_run_with_a_hull_resumes_with_its_file(call, folder):
    mixtures = folder / "mixtures.json"
    mixtures.write_text(json.dumps(_MIXTURES))
    call.ok(train, *_RUN, *_HULL)
    result = folder / "run" / "result.json"
    losses = _losses(result)
    assert _worst(result)["loss"] == pytest.approx(max(losses[:2].mean(), losses[4]), rel=1e-6)
    lambda_ = _last_lambda(folder / "run")
    assert lambda_[0] == pytest.approx(lambda_[1])
    assert not lambda_[2:4].any()

    call.ok(evaluate, "--checkpoint=run", "--output=e.json")
    assert _worst(folder / "e.json")["set"] == "hull"

    mixtures.write_text(json.dumps({"all": dict.fromkeys(_NAMES, 0.2)}))
    resumed = call(train, *_RUN, *_HULL, "--resume")
    assert "expected the lambda_set that the run there was trained with" in resumed.error

    mixtures.unlink()
    outcome = call.ok(evaluate, "--checkpoint=run", "--output=e.json")
    assert "the worst mixture of the run's --lambda_set is left out: " in outcome.out
    assert "worst_mixture" not in read_json(folder / "e.json")


@golden.arguments
def test_rejects_invalid_lambda_sets(call, folder, arguments):
    return call.refused(folder, train, *_RUN, *arguments)
