"""Validation clients: disjoint samples of each domain, and minimum numbers of clients."""

import types

import numpy as np
import pytest

from benchmarks.hard_domains.digits import DIGITS_MODEL
from tests.support.stores import write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.validation_clients import ValidationClients, check_judges, one_in


def test_validation_sample_has_fraction_of_each_domain():
    counts = np.zeros([100, 3], int)
    counts[:80, 0] = counts[80:95, 1] = counts[95:, 2] = 4
    samples = [one_in(counts, 5, np.random.default_rng(seed)) for seed in range(5)]
    for taken in samples:
        assert [taken[:80].sum(), taken[80:95].sum(), taken[95:].sum()] == [16, 3, 1]
    assert not np.array_equal(samples[0], samples[1])


def _clients(tmp_path, counts, is_halved=True, sizes=types.MappingProxyType({})):
    rows = [
        (split, Record(f"{split}_{domain}_{k}", domain, {"x": np.ones(2, np.float32), "label": 0}))
        for split, entry in counts.items()
        for domain, count in entry.items()
        for k in range(count)
        for _ in range(sizes.get(f"{split}_{domain}_{k}", 1))
    ]
    model = tmp_path / "linear.py"
    model.write_text(DIGITS_MODEL)
    store = write_store(tmp_path / "s.sqlite", rows, "features")
    clients = ValidationClients("custom", store, 3, is_halved)
    options = clients.options({"model": str(model)})
    return clients, resolve("custom", {}, options, data=store)


@pytest.mark.slow
def test_early_stopping_clients_do_not_validate(tmp_path):
    clients, spec = _clients(
        tmp_path,
        {"train": {"a": 9, "b": 4}, "heldout": {"a": 8, "b": 6}, "test": {"a": 1, "b": 1}},
    )
    judging, stopping = clients.judging(spec), clients.stopping(spec)
    judges, stoppers = (set(entry.test.client_ids) for entry in (judging, stopping))
    assert not judges & stoppers
    assert len(judges) == len(stoppers) == 7
    assert all(name.startswith("heldout") for name in judges | stoppers)
    assert list(judging.train.client_ids) == list(stopping.train.client_ids)
    assert len(judging.train.client_ids) == 13
    assert check_judges(judging) == []
    assert "the other half stops" in clients.described(judging)


def test_training_clients_replace_missing_heldout_clients(tmp_path):
    clients, spec = _clients(
        tmp_path, {"train": {"a": 40, "b": 20}, "test": {"a": 1, "b": 1}}, is_halved=False
    )
    judging = clients.judging(spec)
    train, judges = (set(entry.client_ids) for entry in (judging.train, judging.test))
    assert not train & judges
    assert (len(train), len(judges)) == (48, 12)
    assert all(name.startswith("train") for name in judges)
    assert "as there are no held-out ones" in clients.described(judging)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"a": 30}, "expected clients of two or more domains, .*, found one, a: name the column"),
        ({"a": 4, "b": 4}, "expected a domain with 3 or more effective .*, found 2 at most"),
    ],
)
def test_few_validation_clients_raise_user_error(tmp_path, counts, message):
    clients, spec = _clients(tmp_path, {s: counts for s in ("train", "heldout", "test")})
    with pytest.raises(UserError, match=message):
        check_judges(clients.judging(spec))


def test_domain_with_few_effective_clients_is_named(tmp_path):
    """Three clients of 8, 1 and 1 examples are worth 10^2 / 66 = 1.5 equal clients."""
    counts = {split: {"a": 20, "b": 3} for split in ("train", "heldout", "test")}
    clients, spec = _clients(tmp_path, counts, is_halved=False, sizes={"heldout_b_0": 8})
    assert check_judges(clients.judging(spec)) == ["b"]
