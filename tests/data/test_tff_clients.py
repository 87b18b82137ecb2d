"""Conversions between TFF's clients and this project's clients and stores."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.comparing import assert_identical
from tff_agnostic.algorithms import build_agnostic_fed_avg
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tff
from tff_agnostic.data import tff_clients
from tff_agnostic.data.store import Store, load_store
from tff_agnostic.models import logistic_regression


def _columns(k: int) -> "OrderedDict[str, np.ndarray]":
    rng, n = np.random.default_rng(k), 3 + k
    return OrderedDict(
        x=rng.normal(size=[n, 4]).astype(np.float32),
        y=rng.integers(3, size=n).astype(np.int32),
        domain_id=rng.integers(2, size=n).astype(np.int32),
    )


def _client_data(names=("b", "a", "c")):
    return tff.simulation.datasets.TestClientData(
        {name: _columns(k) for k, name in enumerate(names)}
    )


def _pairs(k: int) -> tf.data.Dataset:
    columns = _columns(k)
    return tf.data.Dataset.from_tensor_slices((columns["x"], columns["y"]))


def test_conversion_from_tff_accepts_datasets_with_domain_fn():
    clients = tff_clients.from_tff([_pairs(k) for k in range(11)], domain_fn=lambda name: 1)
    assert clients.client_ids == [f"{k:02d}" for k in range(11)]
    domain_id = clients.read("04")["domain_id"]
    assert (domain_id.tolist(), domain_id.dtype) == ([1] * 7, np.int32)


def test_empty_tff_client_has_empty_columns():
    (client_id,) = (clients := tff_clients.from_tff([_pairs(0).take(0)], lambda _: 0)).client_ids
    assert {k: v.shape for k, v in clients.read(client_id).items()} == {
        "x": (0, 4),
        "y": (0,),
        "domain_id": (0,),
    }


def test_cohort_contains_all_or_given_clients():
    every = tff_clients.cohort([_pairs(0), _pairs(1)], domain_fn=int)
    for k, client in enumerate(every):
        np.testing.assert_array_equal(client["x"], _columns(k)["x"])
        np.testing.assert_array_equal(client["domain_id"], np.full(3 + k, k, np.int32))
    assert_identical(tff_clients.cohort(_client_data()), [_columns(k) for k in (1, 0, 2)])
    assert_identical(tff_clients.cohort(_client_data(), ("b", "a")), [_columns(0), _columns(1)])
    with pytest.raises(UserError, match="expected known client ids, found 'z'"):
        tff_clients.cohort(_client_data(), ("a", "z"))


_QUOTED_IDS = ("O'Brien", "' OR '1'='1", 'x"y', "100%", "a;b", "é ü", "back\\slash")


def _quoted_id_store(path: Path) -> Store:
    tff_clients.to_store(path, {"train": _client_data(_QUOTED_IDS), "te'st": _client_data(("d",))})
    return load_store(path)


def test_tff_clients_survive_a_store_round_trip(tmp_path):
    store = _quoted_id_store(tmp_path / "s.sqlite")
    assert store.splits() == ("te'st", "train")
    assert store.description.domains == ("0", "1")
    expected = np.bincount(_columns(0)["domain_id"], minlength=2)
    np.testing.assert_array_equal(store.domain_table("te'st"), [expected])
    for split, names in (("train", _QUOTED_IDS), ("te'st", ("d",))):
        again = tff_clients.to_tff(store, split)
        assert isinstance(again, tff.simulation.datasets.ClientData)
        assert again.client_ids == sorted(names)
        for k, name in enumerate(names):
            (rows,) = again.create_tf_dataset_for_client(name).batch(99).as_numpy_iterator()
            np.testing.assert_array_equal(rows["x"], _columns(k)["x"])
            np.testing.assert_array_equal(rows["label"], _columns(k)["y"])
            np.testing.assert_array_equal(rows["domain"].astype(int), _columns(k)["domain_id"])


def test_domain_fn_may_return_names(tmp_path):
    path = tmp_path / "clients.sqlite"
    tff_clients.to_store(path, {"train": [_pairs(0), _pairs(1)]}, lambda k: ["es", "pt"][int(k)])
    assert load_store(path).description.domains == ("es", "pt")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": 1}, "expected a tff.simulation.datasets.ClientData"),
        ([_pairs(0)], "or a domain_fn, found neither"),
        ([tf.data.Dataset.range(3)], "expected examples"),
    ],
)
def test_unsupported_tff_sources_raise(source, message):
    pytest.importorskip("tensorflow_federated")
    with pytest.raises(UserError, match=message) as refused:
        clients = tff_clients.from_tff(source)
        clients.read(clients.client_ids[0])
    assert "\n" not in str(refused.value)


def test_restored_source_iterator_keeps_its_own_clients():
    process = build_agnostic_fed_avg(logistic_regression(4, 3), 2)
    few, others = (
        tff_clients.source(tff_clients.from_tff(_client_data(names)), process, seed=0).iterator()
        for names in (("a", "b", "c"), ("d",))
    )
    # TFF programs save and restore iterators like this; `others` was created last.
    restored = type(few).from_bytes(few.to_bytes())
    assert_identical(restored.select(3), few.select(3))
    assert_identical(others.select(1), [_columns(0)])
    with pytest.raises(UserError, match="expected a source of the seed, the client ids"):
        type(few).from_bytes(bytes(40))


def test_client_data_with_quoted_ids_work_in_computations(tmp_path, tff_runtime):
    clients = tff_clients.to_tff(_quoted_id_store(tmp_path / "s.sqlite"))

    # TFF converts the id to a tensor, which works for ASCII strings and bytes only.
    read = clients.dataset_computation
    result = {client_id: sum(1 for _ in read(client_id.encode())) for client_id in _QUOTED_IDS}
    assert result == {client_id: 3 + k for k, client_id in enumerate(_QUOTED_IDS)}
    assert sum(1 for _ in clients.create_tf_dataset_from_all_clients()) == sum(result.values())
