"""The mixtures that a run has in view, from its settings and a task."""

import dataclasses

import numpy as np
import pytest

from tff_agnostic.run.build import build_lambda_set, training_examples
from tff_agnostic.run.spec import resolve


def test_of_all_mixtures_no_set_is_built_and_no_client_is_read():
    """Another task's domains, for which lambda_0 may not fit, are then nothing to speak of."""
    spec = resolve("toy_regression", {"initial_domain_weights": (0.5, 0.5)}, {})
    unreadable = dataclasses.replace(spec.load_task(), train=None)
    assert build_lambda_set(spec, unreadable) is None


def test_an_algorithm_without_lambda_has_no_set():
    spec = resolve("toy_regression", {"algorithm": "fed_avg"}, {})
    assert build_lambda_set(spec, spec.load_task()) is None


def test_the_centre_of_a_ball_is_the_tasks_training_mixture():
    spec = resolve("toy_regression", {"lambda_set": "ball", "lambda_radius": 0.2}, {})
    task = spec.load_task()
    totals = training_examples(task)
    found = build_lambda_set(spec, task)
    assert found.center == pytest.approx(totals / np.sum(totals))
    assert found.radius == 0.2
