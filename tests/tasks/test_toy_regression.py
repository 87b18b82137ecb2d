"""The toy problem of the paper's appendix B, whose answer is known."""

from typing import Any

import numpy as np

from tests import golden
from tff_agnostic.data.clients import checked_examples, domain_counts
from tff_agnostic.models.keras import computing_in
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext


def _load(seed: int = 0, **options: Any) -> Task:
    return load_task("toy_regression", options, TaskContext(seed))


def _points(task: Task) -> list[np.ndarray]:
    """The points of each domain."""
    clients = [task.train.read(k) for k in task.train.client_ids]
    y = np.concatenate([c["y"] for c in clients]).astype(np.float64)
    domain_id = np.concatenate([c["domain_id"] for c in clients])
    return [y[domain_id == i] for i in range(task.num_domains)]


def test_five_domains_over_fifty_clients():
    task = _load()
    assert task.num_domains == 5
    assert len(task.train.client_ids) == 50
    spec = task.model.client_data_spec()
    for client_id in task.train.client_ids:
        examples = checked_examples(task.train.read(client_id), spec, 5, client_id)
        assert len(np.unique(examples["domain_id"])) > 1


def test_domains_have_equal_variances_and_their_own_sizes():
    points = _points(_load(spread=0.25))
    np.testing.assert_allclose([p.std() for p in points], 0.25, rtol=1e-5)
    sizes = [len(p) for p in points]
    assert len(set(sizes)) == 5
    np.testing.assert_array_equal(domain_counts(_load().train, 5), sizes)


def _largest_mean_loss(points: list[np.ndarray], w: float) -> float:
    return max(float(np.mean((p - w) ** 2)) for p in points)


def test_the_minimiser_of_the_worst_domain_is_zero():
    points = _points(_load())
    at_zero = _largest_mean_loss(points, 0.0)
    assert all(_largest_mean_loss(points, w) > at_zero for w in (-0.5, -0.01, 0.01, 0.5))


def test_the_mean_of_all_points_is_another():
    assert np.concatenate(_points(_load())).mean() > 0.2


def test_losses_are_squared_distances():
    task = _load()
    examples = task.train.read(task.train.client_ids[0])
    losses, _ = task.model.example_losses(task.model.initial_weights, examples, False, [0, 0])
    w = np.ravel(task.model.initial_weights.trainable[0])[0]
    np.testing.assert_allclose(losses, (examples["y"] - w) ** 2, rtol=1e-6)


def test_trials_have_one_model_so_that_it_is_traced_once():
    model = _load(seed=1).model
    assert _load(seed=2, num_clients=7).model is model
    with computing_in("mixed_bfloat16"):
        assert _load(seed=1).model != model


def test_the_learned_value_is_tracked():
    assert _load().tracked_weights == {"learned value": (0, 0)}


def test_the_seed_decides_the_points():
    def fingerprint(seed: int) -> bytes:
        return np.concatenate(_points(_load(seed))).tobytes()

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


def test_the_figure_has_the_learned_value_and_the_domain_weights():
    task = _load()
    columns = {"round": np.arange(1.0, 4.0), "learned value": np.array([2.0, 1.0, 0.5])}
    columns.update((f"lambda/{name}", np.full([3], 0.2)) for name in task.domain_names)
    (draw,) = task.figures.values()
    value_axes, weight_axes = draw(task, columns).axes
    np.testing.assert_array_equal(value_axes.lines[0].get_ydata(), [2.0, 1.0, 0.5])
    assert [line.get_label() for line in weight_axes.lines] == list(task.domain_names)


@golden.values
def test_an_option_out_of_range_is_refused(case):
    return golden.refusal(_load, **case)
