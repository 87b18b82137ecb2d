"""The papers' experiments: what they name exists."""

import dataclasses
import re

import numpy as np
import pytest

from tests.data.stores import image, sentence, write_store
from tff_agnostic.importing.importer import checked_import
from tff_agnostic.metrics.evaluation_report import DEFAULT_PERCENTILES, statistic_names
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import (
    SUMMARY_HEADINGS,
    ArmsAsPredictors,
    Experiment,
    OverClients,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.tasks import load_task_of_run
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.tasks.task import Task, TaskContext, Use
from tff_agnostic.tasks.text_tasks import CifgNetwork, LstmNetwork

_NAMES = list(EXPERIMENTS)
_PERSON = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
)
# Domains of the data that an experiment is meant for, where the task does not fix them.
_DOMAINS = {
    "spanish_keyboard": ("es-AR", "es-MX", "es-ES"),
    "next_word": ("ai", "beer", "matheducators"),
    "two_domain_lm": ("conversations", "documents"),
}
_SMALL = {
    "adult": {"num_clients": 1, "num_test_clients": 1},
    "spanish_keyboard": {"network": CifgNetwork(2, 2), "sequence_length": 3},
    "next_word": {"network": LstmNetwork(2, 2), "sequence_length": 3},
    "stackoverflow": {"network": LstmNetwork(2, 2), "sequence_length": 3},
    "two_domain_lm": {"network": LstmNetwork(2, 2), "sequence_length": 3},
}


def _load(experiment: Experiment, folder) -> Task:
    """Loads the experiment's task with a model as small as it gets."""
    name, data_dir, data = experiment.task, None, None
    if name == "adult":
        data_dir = folder
        for file in ("adult.data", "adult.test"):
            (folder / file).write_text(_PERSON)
    elif name in ("emnist", "fashion_mnist"):
        domain = "high_school" if name == "emnist" else "0"
        rows = [(split, image("a", domain, 0)) for split in ("train", "test")]
        data = write_store(folder / "s.sqlite", rows, "features")
    else:
        domains = _DOMAINS.get(name, ("answer", "question"))
        rows = [(s, sentence("a", d, "x")) for s in ("train", "test") for d in domains]
        data = write_store(folder / "s.sqlite", rows, "text", vocabulary={"x": 1})
    # How many writers there are is a matter of the data.
    of_data = ("high_school_writers", "train_share")
    options = {k: v for k, v in experiment.task_options.items() if k not in of_data}
    return load_task_of_run(
        name, {**options, **_SMALL.get(name, {})}, TaskContext(0, data_dir, data)
    )


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The task of every experiment, loaded."""
    return {name: _load(EXPERIMENTS[name], tmp_path_factory.mktemp(name)) for name in _NAMES}


@pytest.mark.parametrize("name", _NAMES)
def test_arms_are_runs(name):
    experiment = EXPERIMENTS[name]
    if experiment.base_predictors is None:
        assert {"fed_avg", "agnostic_fed_avg"} <= set(experiment.arms)
    assert len({arm.label for arm in experiment.arms.values()}) == len(experiment.arms)
    for arm in experiment.arms.values():
        # Refuses what has no effect.
        resolve(experiment.task, dict(arm.settings), experiment.task_options)


def test_arms_that_are_mixed_are_trained_before_the_others():
    for experiment in EXPERIMENTS.values():
        recipe, arms = experiment.base_predictors, list(experiment.arms)
        if isinstance(recipe, ArmsAsPredictors):
            assert tuple(arms[: len(recipe.arms)]) == recipe.arms


@pytest.mark.nightly
@pytest.mark.parametrize("name", _NAMES)
def test_targets_are_domains(name, tasks):
    domains = tasks[name].domain_names
    targets = [arm.settings.get("target_domain") for arm in EXPERIMENTS[name].arms.values()]
    assert {target for target in targets if target is not None} <= set(domains)
    assert EXPERIMENTS[name].harder_domain in (None, *domains)


@pytest.mark.nightly
@pytest.mark.parametrize("name", _NAMES)
def test_columns_are_domains_and_summaries(name, tasks):
    experiment = EXPERIMENTS[name]
    columns = experiment.columns
    assert len(set(columns)) == len(columns)
    statistics = {column for column in columns if isinstance(column, OverClients)}
    assert {s.statistic for s in statistics} <= set(statistic_names(DEFAULT_PERCENTILES))
    others = set(columns) - statistics - set(SUMMARY_HEADINGS) - set(tasks[name].domain_names)
    # Locales that only the paper has.
    assert others == ({"es-419*", "es-US"} if name == "spanish_keyboard" else set())


@pytest.mark.nightly
@pytest.mark.parametrize("name", _NAMES)
def test_measures_are_those_of_the_model(name, tasks):
    measures = {"loss", *(metric.name for metric in tasks[name].model.metrics)}
    assert set(EXPERIMENTS[name].measures) <= measures
    assert EXPERIMENTS[name].curve in EXPERIMENTS[name].measures


@pytest.mark.parametrize("name", _NAMES)
def test_the_papers_numbers_are_for_cells_that_exist(name):
    experiment = EXPERIMENTS[name]
    assert set(experiment.paper.cells) <= set(experiment.measures)
    for arms in experiment.paper.cells.values():
        assert set(arms) <= set(experiment.arms)
        for cells in arms.values():
            assert set(cells) <= set(experiment.columns)
            for text in cells.values():
                assert re.fullmatch(r"\d+(\.\d+)?( \(\d*\.\d+\))?", text), text


@pytest.mark.parametrize("name", _NAMES)
def test_the_papers_differences_are_those_of_its_domains(name):
    """A slip of the pen in one of the numbers would show."""
    experiment = EXPERIMENTS[name]
    for arms in experiment.paper.cells.values():
        for cells in arms.values():
            numbers = {column: float(text.split()[0]) for column, text in cells.items()}
            domains = [v for column, v in numbers.items() if column not in SUMMARY_HEADINGS]
            if "(difference)" in numbers:
                found = numbers["(difference)"]
                np.testing.assert_allclose(found, max(domains) - min(domains), atol=0.1001)
            if "(worst)" in numbers:
                assert numbers["(worst)"] in (min(domains), max(domains))


def test_what_a_paper_does_not_report_has_no_cell():
    paper = EXPERIMENTS["emnist"].paper
    assert paper.cell("accuracy", "fed_avg", "census") == "86.3 (0.5)"
    assert paper.cell("accuracy", "fed_avg", "(overall)") is None
    assert paper.cell("accuracy", "another", "census") is None
    assert paper.cell("loss", "fed_avg", "census") is None


@pytest.mark.parametrize("name", _NAMES)
def test_raw_data_become_what_the_task_reads(name, tmp_path):
    experiment = EXPERIMENTS[name]
    task = DEFAULTS[experiment.task].spec
    if experiment.raw_data is None:
        assert task.data_dir is not Use.NO
        return
    assert task.data is not Use.NO
    source, output = tmp_path / "raw", tmp_path / "s.sqlite"
    source.mkdir()
    options = experiment.import_options(source, output)
    assert (options.input, options.output) == ((str(source),), str(output))
    given = {
        field.name
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != field.default
    }
    # Nothing in it is without effect or out of range.
    checked_import(options, given)
