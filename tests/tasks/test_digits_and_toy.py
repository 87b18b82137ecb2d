"""The task digits, with two rare classes as domains, and the task toy_regression."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import checked_examples, domain_counts
from tff_agnostic.models.keras import computing_in
from tff_agnostic.tasks.image_classes import parse_keep
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext


def _load(seed: int = 0, **options: Any) -> Task:
    return load_task("digits", options, TaskContext(seed))


def _counts(task: Task, side: str) -> np.ndarray:
    return domain_counts(getattr(task, side), task.num_domains)


def _images(clients: Any) -> list[bytes]:
    return sorted(x.tobytes() for k in clients.client_ids for x in clients.read(k)["x"])


@pytest.fixture(scope="module")
def task() -> Task:
    return _load()


@pytest.mark.slow
def test_digits_domains_are_the_classes(task):
    assert task.domain_names == tuple("0123456789")
    spec = task.model.client_data_spec()
    for clients in (task.train, task.test):
        for client_id in clients.client_ids:
            examples = checked_examples(clients.read(client_id), spec, 10, client_id)
            assert len(examples["y"]) > 0
            np.testing.assert_array_equal(examples["y"], examples["domain_id"])
            assert (examples["x"].min(), examples["x"].max() <= 1) == (0, True)


def test_keep_option_thins_training_images_only():
    for held_out in (0.0, 0.25):
        thinned, whole = _load(heldout_share=held_out), _load(heldout_share=held_out, keep="")
        counts, everything = _counts(thinned, "train"), _counts(whole, "train")
        np.testing.assert_array_equal(counts[:8], everything[:8])
        assert counts[8] == round(0.15 * everything[8])
        assert counts[9] == round(0.3 * everything[9])
        assert _images(thinned.test) == _images(whole.test)


def test_each_image_belongs_to_one_client():
    task = _load(keep="")
    pixels, labels = load_digits(return_X_y=True)
    expected = sorted((x / 16).astype(np.float32).tobytes() for x in pixels)
    assert sorted(_images(task.train) + _images(task.test)) == expected
    np.testing.assert_array_equal(
        _counts(task, "train") + _counts(task, "test"), np.bincount(labels)
    )


def test_test_share_applies_to_every_class():
    counts = _counts(_load(test_share=0.5), "test")
    totals = np.bincount(load_digits(return_X_y=True)[1])
    assert np.all(np.abs(counts - totals / 2) <= 1)


def test_small_concentration_skews_clients():
    def largest_share(concentration: float) -> float:
        clients = _load(concentration=concentration).train
        mixtures = [np.bincount(clients.read(k)["y"], minlength=10) for k in clients.client_ids]
        return float(np.mean([m.max() / m.sum() for m in mixtures]))

    assert largest_share(0.05) > largest_share(0.5) > largest_share(50.0)


@pytest.mark.slow
def test_seed_determines_split_and_clients():
    def fingerprint(seed: int) -> tuple[list[bytes], list[int]]:
        task = _load(seed)
        return _images(task.test), [len(task.train.read(k)["y"]) for k in task.train.client_ids]

    assert fingerprint(3) == fingerprint(3)
    assert fingerprint(3)[0] != fingerprint(4)[0]
    assert fingerprint(3)[1] != fingerprint(4)[1]


def test_client_counts_are_options():
    task = _load(num_clients=7, num_test_clients=3)
    assert (len(task.train.client_ids), len(task.test.client_ids)) == (7, 3)
    for options in ({"num_clients": 0}, {"num_test_clients": 2000}):
        (name,) = options
        assert golden.refusal(_load, **options).startswith(f"{name}: expected 1 to ")


@pytest.mark.parametrize("text", ["8", "8:a", "10:0.5", "-1:0.5", "8:0", "8:1.5", "8:0.1,8:0.2"])
def test_malformed_keep_option_raises(text):
    assert parse_keep("8:0.15,9:0.3") == {8: 0.15, 9: 0.3}
    with pytest.raises(UserError, match=r"^keep: expected CLASS:SHARE "):
        parse_keep(text)


@pytest.mark.slow
def test_heldout_images_come_from_training_images(task):
    held_out = _load(heldout_share=0.25, keep="")
    assert (task.test_split, held_out.test_split) == ("test", "heldout")
    everything = _load(keep="")
    test, evaluated, trained = map(_images, (everything.test, held_out.test, held_out.train))
    assert sorted(evaluated + trained) == _images(everything.train)
    # The data set contains some images twice.
    assert len(set(evaluated) & set(test)) <= 1
    np.testing.assert_allclose(
        _counts(held_out, "test"), 0.25 * _counts(everything, "train"), atol=1
    )


# --- Tests of toy_regression from the paper's appendix B, whose solution is known


def _load_toy(seed: int = 0, **options: Any) -> Task:
    return load_task("toy_regression", options, TaskContext(seed))


def _points(task: Task) -> list[np.ndarray]:
    """Returns the labels of each domain."""
    clients = [task.train.read(k) for k in task.train.client_ids]
    y = np.concatenate([c["y"] for c in clients]).astype(np.float64)
    domain_id = np.concatenate([c["domain_id"] for c in clients])
    return [y[domain_id == i] for i in range(task.num_domains)]


def test_toy_has_mixed_clients_in_five_domains():
    task = _load_toy()
    assert task.num_domains == 5
    assert len(task.train.client_ids) == 50
    assert task.tracked_weights == {"learned value": (0, 0)}
    spec = task.model.client_data_spec()
    for client_id in task.train.client_ids:
        examples = checked_examples(task.train.read(client_id), spec, 5, client_id)
        assert len(np.unique(examples["domain_id"])) > 1


def test_toy_domains_differ_in_size_only():
    points = _points(_load_toy(spread=0.25))
    np.testing.assert_allclose([p.std() for p in points], 0.25, rtol=1e-5)
    sizes = [len(p) for p in points]
    assert len(set(sizes)) == 5
    np.testing.assert_array_equal(domain_counts(_load_toy().train, 5), sizes)


def test_toy_minimax_solution_is_zero():
    points = _points(_load_toy())

    def largest_loss(w: float) -> float:
        return max(float(np.mean((p - w) ** 2)) for p in points)

    assert all(largest_loss(w) > largest_loss(0.0) for w in (-0.5, -0.01, 0.01, 0.5))
    # The solution of FedAvg, the mean of all points, differs.
    assert np.concatenate(points).mean() > 0.2


def test_toy_losses_are_squared_distances():
    task = _load_toy()
    examples = task.train.read(task.train.client_ids[0])
    losses, _ = task.model.example_losses(task.model.initial_weights, examples, False, [0, 0])
    w = np.ravel(task.model.initial_weights.trainable[0])[0]
    np.testing.assert_allclose(losses, (examples["y"] - w) ** 2, rtol=1e-6)


def test_toy_tasks_share_a_model():
    model = _load_toy(seed=1).model
    assert _load_toy(seed=2, num_clients=7).model is model
    with computing_in("mixed_bfloat16"):
        assert _load_toy(seed=1).model != model


def test_seed_determines_toy_points():
    def fingerprint(seed: int) -> bytes:
        return np.concatenate(_points(_load_toy(seed))).tobytes()

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)
