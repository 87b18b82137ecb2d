"""Every task in the registry, and how one is loaded by name."""

import dataclasses

import pytest

from tests import golden
from tff_agnostic.run.options import RunConfig, settings_of_runs
from tff_agnostic.run.spec import resolve
from tff_agnostic.settings import flag_of
from tff_agnostic.tasks.registry import TASKS, load_task
from tff_agnostic.tasks.task import TaskContext


@pytest.mark.parametrize("name", list(TASKS))
def test_options_have_a_help_text_and_a_default(name):
    assert TASKS[name].summary
    for field in dataclasses.fields(TASKS[name].options):
        assert field.metadata["help"]
        assert field.default is not dataclasses.MISSING


@pytest.mark.parametrize("name", list(TASKS))
def test_defaults_are_settings_of_a_run_and_in_range(name):
    spec = TASKS[name]
    kinds = [RunConfig, *(kind for _, _, kind in settings_of_runs())]
    known = {flag_of(field) for kind in kinds for field in dataclasses.fields(kind)}
    assert set(spec.defaults) <= known
    for algorithm, defaults in spec.algorithm_defaults.items():
        assert set(defaults) <= known
        resolve(name, {"algorithm": algorithm}, {})
    resolve(name, {}, {})


@pytest.mark.parametrize("name", ["digits", "toy_regression"])
def test_tasks_without_files_load_with_their_defaults(name):
    task = load_task(name, {}, TaskContext(seed=0))
    assert len(set(task.domain_names)) == task.num_domains
    cohort_size = {**dataclasses.asdict(RunConfig()), **TASKS[name].defaults}["clients_per_round"]
    assert cohort_size <= len(task.train.client_ids)


@golden.values
def test_what_does_not_fit_is_refused(tmp_path, case):
    name, options, data_dir = case
    (tmp_path / "here").mkdir()
    context = TaskContext(seed=0, data_dir=None if data_dir is None else tmp_path / data_dir)
    return golden.refusal(load_task, name, options, context)
