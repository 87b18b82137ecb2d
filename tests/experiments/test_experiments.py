"""The papers' experiments: valid methods, existing domains, consistent printed numbers."""

import dataclasses
import re

import numpy as np
import pytest

from tests.support.commands import ADULT_ROW
from tests.support.stores import image, sentence, write_store
from tff_agnostic.importing.importer import checked_import
from tff_agnostic.metrics.evaluation_report import DEFAULT_PERCENTILES, statistic_names
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import (
    OVER_CLIENTS,
    SUMMARY_HEADINGS,
    ArmsAsPredictors,
    Experiment,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.tasks import load_run_task
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.tasks.task import Task, TaskContext, Use
from tff_agnostic.tasks.text_tasks import LstmNetwork

_NAMES = list(EXPERIMENTS)
# Domains in the experiments' data, for tasks that take any domains.
_DOMAINS = {
    "spanish_keyboard": ("es-AR", "es-MX", "es-ES"),
    "next_word": ("ai", "beer", "matheducators"),
    "two_domain_lm": ("conversations", "documents"),
}
_SMALL_TEXT = {"network": LstmNetwork(2, 2), "sequence_length": 3}


def _load(experiment: Experiment, folder) -> Task:
    """Loads the experiment's task with a small model and one example per domain."""
    name, data_dir, data, small = experiment.task, None, None, {}
    if name == "adult":
        data_dir, small = folder, {"num_clients": 1, "num_test_clients": 1}
        for file in ("adult.data", "adult.test"):
            (folder / file).write_text(ADULT_ROW)
    elif name in ("emnist", "fashion_mnist"):
        domain = "high_school" if name == "emnist" else "0"
        rows = [(split, image("a", domain, 0)) for split in ("train", "test")]
        data = write_store(folder / "s.sqlite", rows, "features")
    else:
        domains = _DOMAINS.get(name, ("answer", "question"))
        rows = [(s, sentence("a", d, "x")) for s in ("train", "test") for d in domains]
        data = write_store(folder / "s.sqlite", rows, "text", vocabulary={"x": 1})
        small = {} if name == "unigram" else _SMALL_TEXT
    # The number of writers depends on the data.
    data_options = ("high_school_writers", "train_share")
    options = {k: v for k, v in experiment.task_options.items() if k not in data_options}
    return load_run_task(name, options | small, TaskContext(0, data_dir, data))


@pytest.mark.parametrize("name", _NAMES)
def test_methods_are_valid_runs(name):
    experiment = EXPERIMENTS[name]
    recipe, arms = experiment.base_predictors, list(experiment.arms)
    if recipe is None:
        assert {"fed_avg", "agnostic_fed_avg"} <= {*arms}
    elif isinstance(recipe, ArmsAsPredictors):
        # Predictors are trained before the methods that mix them.
        assert tuple(arms[: len(recipe.arms)]) == recipe.arms
    assert len({arm.label for arm in experiment.arms.values()}) == len(arms)
    for arm in experiment.arms.values():
        # `resolve` rejects settings without effect.
        resolve(experiment.task, dict(arm.settings), experiment.task_options)


@pytest.mark.nightly
@pytest.mark.parametrize("name", _NAMES)
def test_columns_and_targets_exist_in_the_task(name, tmp_path):
    experiment = EXPERIMENTS[name]
    task = _load(experiment, tmp_path)
    domains = task.domain_names
    targets = {arm.settings.get("target_domain") for arm in experiment.arms.values()} - {None}
    assert targets <= {*domains}
    assert experiment.harder_domain in (None, *domains)
    statistics = {c.removesuffix(OVER_CLIENTS) for c in experiment.columns if OVER_CLIENTS in c}
    assert statistics <= {*statistic_names(DEFAULT_PERCENTILES)}
    others = {c for c in experiment.columns if OVER_CLIENTS not in c}
    # The paper has further locales.
    locales = {"es-419*", "es-US"} if name == "spanish_keyboard" else set()
    assert others - {*SUMMARY_HEADINGS} - {*domains} == locales
    measures = {"loss", *(metric.name for metric in task.model.metrics)}
    assert {*experiment.measures} <= measures and experiment.curve in experiment.measures


@pytest.mark.parametrize("name", _NAMES)
def test_printed_numbers_are_consistent(name):
    """A typing error in one number would make the paper's numbers inconsistent."""
    experiment = EXPERIMENTS[name]
    assert {*experiment.paper.cells} <= {*experiment.measures}
    for arms in experiment.paper.cells.values():
        assert {*arms} <= {*experiment.arms}
        for cells in arms.values():
            assert {*cells} <= {*experiment.columns}
            for text in cells.values():
                assert re.fullmatch(r"\d+(\.\d+)?( \(\d*\.\d+\))?", text), text
            numbers = {column: float(text.split()[0]) for column, text in cells.items()}
            domains = [v for column, v in numbers.items() if column not in SUMMARY_HEADINGS]
            if "(difference)" in numbers:
                spread = max(domains) - min(domains)
                np.testing.assert_allclose(numbers["(difference)"], spread, atol=0.1001)
            if "(worst)" in numbers:
                assert numbers["(worst)"] in (min(domains), max(domains))


@pytest.mark.parametrize("name", _NAMES)
def test_import_options_are_valid(name, tmp_path):
    experiment = EXPERIMENTS[name]
    task = DEFAULTS[experiment.task].spec
    if experiment.raw_data is None:
        assert task.data_dir is not Use.NO
        return
    assert task.data is not Use.NO
    (tmp_path / "raw").mkdir()
    options = experiment.import_options(tmp_path / "raw", tmp_path / "s.store")
    assert dataclasses.replace(options, input=(), output="") == experiment.raw_data
    fields = dataclasses.fields(options)
    given = {f.name for f in fields if getattr(options, f.name) != f.default}
    # `checked_import` rejects options without effect or out of range.
    checked_import(options, given)
