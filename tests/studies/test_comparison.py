"""What is computed from several runs, by hand."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from tests.run.harness import measures, result_json
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.metrics.evaluation_report import ClientValues, statistic_names
from tff_agnostic.metrics.metrics_file import Column, History
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.studies.comparison import Comparison, collect

_NAMES = ("phone", "tablet")
_MEASURES = measures("loss", "accuracy")
_COLUMNS = [Column(ReportField(name, name)) for name in ("test/worst loss", "test/worst accuracy")]


def _run(
    path: Path,
    losses: list[Any],
    accuracies: list[Any],
    overall: float = 0.5,
    counts: Sequence[int] = (5, 5),
    superquantile: Optional[float] = None,
) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(parents=True)
    domains = {
        name: {"loss": loss, "accuracy": accuracy, "num_examples": count}
        for name, loss, accuracy, count in zip(_NAMES, losses, accuracies, counts)
    }
    result = result_json(domains, {"loss": overall, "accuracy": overall})
    if superquantile is not None:
        of_measure = {"num_clients": 3, "mean": 0.5, "superquantile": superquantile}
        result["overall"]["over_clients"] = {"loss": of_measure, "accuracy": of_measure}
        values = ClientValues([0.25, 0.75], [1, 2], [4, 8], [1, 2], [0.25, math.inf])
        result["client_values"] = {"loss": values.to_json()}
    folder.result.write_text(json.dumps(result))
    History(folder.metrics, _COLUMNS).append(
        1, {"test/worst loss": 1.0, "test/worst accuracy": 0.5}
    )
    return folder


@pytest.fixture
def comparison(tmp_path) -> Comparison:
    folders = [
        _run(tmp_path / "0", [1.0, 2.0], [0.9, 0.5], overall=0.2),
        _run(tmp_path / "1", [3.0, 2.5], [0.7, 0.8], overall=0.4),
        _run(tmp_path / "2", [2.0, 3.0], [0.8, 0.2], overall=0.9),
    ]
    trials = collect(folders, _NAMES, _MEASURES, [1] * 3)
    single = collect(folders[:1], _NAMES, _MEASURES, [1])
    return Comparison(_NAMES, _MEASURES, {"agnostic_fed_avg": trials, "fed_avg": single})


def test_means_and_sample_standard_deviations(comparison):
    trials = comparison.trials["agnostic_fed_avg"]
    assert trials.mean("phone", "loss") == 2.0
    assert trials.std("phone", "loss") == 1.0
    assert trials.mean("(overall)", "accuracy") == pytest.approx(0.5)
    assert trials.std("(overall)", "accuracy") == pytest.approx(np.sqrt((0.09 + 0.01 + 0.16) / 2))


def test_the_worst_domain_is_that_of_each_trial(comparison):
    values = comparison.trials["agnostic_fed_avg"].values
    assert values["(worst)"]["loss"].tolist() == [2.0, 3.0, 3.0]
    assert values["(worst)"]["accuracy"].tolist() == [0.5, 0.7, 0.2]


def test_the_difference_is_that_of_each_trial(comparison):
    values = comparison.trials["agnostic_fed_avg"].values
    np.testing.assert_allclose(values["(difference)"]["loss"], [1.0, 0.5, 1.0])
    np.testing.assert_allclose(values["(difference)"]["accuracy"], [0.4, 0.1, 0.6])


def test_a_domain_without_test_examples_is_null_and_not_the_worst(tmp_path):
    run = _run(tmp_path / "0", [1.0, None], [0.9, None], counts=(5, 0))
    trials = collect([run], _NAMES, _MEASURES, [1])
    comparison = Comparison(_NAMES, _MEASURES, {"fed_avg": trials})
    found = comparison.to_json()["fed_avg"]
    assert found["tablet"]["loss"] == {"mean": None, "std": None, "trials": [None]}
    assert found["(worst)"]["loss"]["mean"] == 1.0
    assert found["(difference)"]["accuracy"]["mean"] == 0.0
    assert comparison.not_counted == ("tablet",)


def test_domains_with_few_test_examples_are_not_the_worst_of_their_trial(tmp_path):
    folders = [
        _run(tmp_path / "0", [1.0, 2.0], [0.9, 0.5], counts=(30, 9)),
        _run(tmp_path / "1", [3.0, 2.5], [0.7, 0.8], counts=(30, 10)),
        _run(tmp_path / "2", [3.0, 2.5], [0.7, 0.8], counts=(3, 0)),
    ]
    trials = collect(folders, _NAMES, _MEASURES, [10] * 3)
    np.testing.assert_array_equal(trials.values["(worst)"]["loss"], [1.0, 3.0, np.nan])
    np.testing.assert_array_equal(trials.values["(worst)"]["accuracy"], [0.9, 0.7, np.nan])
    np.testing.assert_array_equal(trials.values["(difference)"]["loss"], [0.0, 0.5, np.nan])
    assert set(trials.not_counted) == set(_NAMES)
    # Trials may have different --worst_min_examples.
    trials = collect(folders, _NAMES, _MEASURES, [1, 10, 1])
    assert trials.values["(worst)"]["loss"].tolist() == [2.0, 3.0, 3.0]
    assert set(trials.not_counted) == {"tablet"}


_STATISTICS = statistic_names((50.0,))


def test_what_trials_say_of_their_clients_is_collected(tmp_path):
    folders = [
        _run(tmp_path / str(k), [1.0, 2.0], [0.9, 0.5], superquantile=s)
        for k, s in enumerate((0.25, 0.75))
    ]
    trials = collect(folders, _NAMES, _MEASURES, [1] * 2, _STATISTICS)
    assert list(trials.over_clients) == ["mean", "p50", "superquantile"]
    assert trials.over_clients["superquantile"]["accuracy"].tolist() == [0.25, 0.75]
    # Nobody asked for the median then.
    assert np.isnan(trials.over_clients["p50"]["loss"]).all()
    assert {name: len(of) for name, of in trials.client_values.items()} == {
        "loss": 2,
        "accuracy": 0,
    }
    (values, _) = trials.client_values["loss"]
    assert (values.values, values.clients, values.sizes) == ([0.25, 0.75], [1, 2], [4, 8])
    assert values.size_means[0] == 0.25 and math.isnan(values.size_means[1])
    found = Comparison(_NAMES, _MEASURES, {"fed_avg": trials}).to_json()["fed_avg"]
    assert list(found) == [*_NAMES, "(worst)", "(overall)", "(difference)", "(over clients)"]
    assert found["(over clients)"]["superquantile"]["loss"] == {
        "mean": 0.5,
        "std": pytest.approx(0.125**0.5),
        "trials": [0.25, 0.75],
    }
    assert found["(over clients)"]["p50"]["loss"]["mean"] is None


def test_trials_of_an_earlier_release_say_less_of_their_clients(tmp_path):
    folders = [
        _run(tmp_path / str(k), [1.0, 2.0], [0.9, 0.5], superquantile=s)
        for k, s in enumerate((None, 0.75))
    ]
    trials = collect(folders, _NAMES, _MEASURES, [1] * 2, _STATISTICS)
    np.testing.assert_array_equal(trials.over_clients["superquantile"]["loss"], [np.nan, 0.75])
    assert len(trials.client_values["loss"]) == 1
    comparison = Comparison(_NAMES, _MEASURES, {"fed_avg": trials})
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))["fed_avg"]
    of_clients = found["(over clients)"]["superquantile"]["loss"]
    assert of_clients == {"mean": None, "std": None, "trials": [None, 0.75]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("overall", {"loss": 1.0, "accuracy": 1.0, "over_clients": []}),
        ("overall", {"loss": 1.0, "accuracy": 1.0, "over_clients": {"loss": {"mean": "1"}}}),
        ("client_values", []),
        ("client_values", {"loss": {}}),
        ("client_values", {"loss": {"histogram": {"value": [1], "clients": []}, "by_size": {}}}),
    ],
)
def test_a_damaged_distribution_is_told(tmp_path, key, value):
    run = _run(tmp_path / "0", [1.0, 2.0], [0.9, 0.5], superquantile=0.5)
    result = json.loads(run.result.read_text())
    run.result.write_text(json.dumps({**result, key: value}))
    with pytest.raises(UserError, match="expected the result of a run with loss, accuracy of "):
        collect([run], _NAMES, _MEASURES, [1], _STATISTICS)


def test_rows_have_labels_or_their_names(comparison):
    labelled = dataclasses.replace(comparison, labels={"fed_avg": "FedAvg"})
    assert [labelled.label(row) for row in labelled.trials] == ["agnostic_fed_avg", "FedAvg"]
