"""Client data for TFF, and components of TFF programs: cohorts and evaluation."""

from __future__ import annotations

import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, ClassVar, NamedTuple, Optional

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.computations.tff_process import build_evaluation
from tff_agnostic.data.clients import ClientDataset, ListedClients
from tff_agnostic.data.store import ArrowStore, Store
from tff_agnostic.data.store_format import DOMAIN, FEATURES, LABEL
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.data.tff_store import to_tff
from tff_agnostic.models.model import Examples, ModelWeights, as_model

# Number of examples to read from TensorFlow at once.
_ROWS_AT_ONCE = 4096


class _TffClients(ListedClients):
    """Clients with TensorFlow datasets as examples, read one client at a time."""

    def __init__(
        self, client_ids: Sequence[str], get_dataset: Callable[[str], Any], domain_fn: Any
    ) -> None:
        self._ids = sorted(client_ids)
        self._get_dataset = get_dataset
        self._domain_fn = domain_fn

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        columns = self.columns(client_id)
        if "domain_id" not in columns:
            domain = np.int32(self.find_domain(client_id))
            columns["domain_id"] = np.full(len(columns["y"]), domain, np.int32)
        columns["domain_id"] = columns["domain_id"].astype(np.int32)
        return columns

    def find_domain(self, client_id: str) -> Any:
        """Returns a client's domain according to the caller's `domain_fn`."""
        if self._domain_fn is None:
            raise UserError(
                f"client {client_id}: expected examples with a domain_id, or a domain_fn, found "
                "neither"
            )
        return self._domain_fn(client_id)

    def columns(self, client_id: str) -> OrderedDict[str, Any]:
        """Returns the columns of one client's dataset."""
        dataset = self._get_dataset(client_id)
        spec = dataset.element_spec
        if isinstance(spec, tuple) and len(spec) == 2:
            dataset = dataset.map(lambda x, y: OrderedDict(x=x, y=y))
        elif not isinstance(spec, Mapping) or not {"x", "y"} <= set(spec):
            raise UserError(
                f'client {client_id}: expected examples (x, y), or a mapping of "x", "y" and '
                f'"domain_id", found {spec}'
            )
        spec = dataset.element_spec
        parts = list(dataset.batch(_ROWS_AT_ONCE).as_numpy_iterator())
        if not parts:
            parts = [
                tf.nest.map_structure(
                    lambda s: np.zeros([0, *s.shape], s.dtype.as_numpy_dtype), spec
                )
            ]
        columns = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
        names = ("x", "y", *(["domain_id"] if "domain_id" in spec else []))
        return OrderedDict((name, columns[name]) for name in names)


def clients_from_tff(source: Any, domain_fn: Any) -> _TffClients:
    """Returns TFF's clients as a `ClientDataset`; see `data.tff_clients.from_tff`."""
    if isinstance(source, tff.simulation.datasets.ClientData):
        get_dataset = source.create_tf_dataset_for_client
        return _TffClients(source.client_ids, get_dataset, domain_fn)
    if isinstance(source, Sequence) and all(isinstance(d, tf.data.Dataset) for d in source):
        width = len(str(max(len(source) - 1, 0)))
        by_id = {f"{k:0{width}d}": dataset for k, dataset in enumerate(source)}
        return _TffClients(list(by_id), by_id.__getitem__, domain_fn)
    raise UserError(
        "clients: expected a tff.simulation.datasets.ClientData, or a list of tf.data.Datasets, "
        f"found {type(source).__name__}"
    )


def store_from_tff(
    path: Path, splits: Mapping[str, Any], domain_fn: Any, feature_name: str
) -> None:
    """Writes TFF's clients into a store; see `data.tff_clients.to_store`."""
    with StoreWriter(path) as writer:
        for split, source in splits.items():
            clients = clients_from_tff(source, domain_fn)
            for client_id in clients.client_ids:
                columns = clients.columns(client_id)
                count = len(columns["y"])
                domains = columns.get("domain_id")
                if domains is None:
                    domains = [clients.find_domain(client_id)] * count
                features = {
                    feature_name: columns["x"],
                    LABEL: columns["y"],
                    DOMAIN: pa.array(map(str, domains), pa.string()),
                }
                writer.add(pa.array([split] * count), pa.array([client_id] * count), features)
        writer.finish(FEATURES, source="clients of TFF")


def simulation_datasets() -> Any:
    """Returns TFF's module of downloadable data sets."""
    return tff.simulation.datasets


class StoreClientData(tff.simulation.datasets.ClientData):
    """The clients of a store's split, for TFF; see `data.tff_clients.to_tff`.

    TFF's reader inserts the id of a client into an SQL statement: an id with a quote breaks the
    statement or selects other clients. TensorFlow's SQL dataset has no parameters, so ids are
    hexadecimal literals here.
    """

    def __init__(self, store: Store, split: str) -> None:
        path = store.path
        if isinstance(store, ArrowStore):
            # Inside graphs, TensorFlow can read one client's examples only from SQLite.
            self._folder = tempfile.TemporaryDirectory()
            path = Path(self._folder.name) / "clients.sqlite"
            to_tff(store, path)
        self._path = str(path)
        self._split = split
        self._client_ids = store.client_ids(split)
        self._spec = OrderedDict(
            (name, tf.TensorSpec(feature.shape, tf.as_dtype(feature.dtype)))
            for name, feature in sorted(store.description.features.items())
        )

    @property
    def client_ids(self) -> list[str]:
        """The ids of the clients, sorted."""
        return self._client_ids

    @property
    def element_type_structure(self) -> OrderedDict[str, Any]:
        """Structure of an example's types."""
        return self._spec

    @property
    def serializable_dataset_fn(self) -> Callable[[Any], tf.data.Dataset]:
        """A function from a client id, which may be a tensor, to the client's examples."""
        return self._dataset

    def _dataset(self, client_id: Any) -> tf.data.Dataset:
        query = tf.strings.join(
            [
                "SELECT serialized_example_proto FROM examples WHERE client_id = ",
                _sql_literal(client_id),
                " AND split_name = ",
                _sql_literal(self._split),
            ]
        )
        protos = tf.data.experimental.SqlDataset("sqlite", self._path, query, tf.string)
        return protos.map(self._parsed, num_parallel_calls=tf.data.AUTOTUNE)

    def _parsed(self, proto: tf.Tensor) -> OrderedDict[str, tf.Tensor]:
        features = {
            name: tf.io.FixedLenFeature(spec.shape, spec.dtype) for name, spec in self._spec.items()
        }
        parsed = tf.io.parse_single_example(proto, features)
        return OrderedDict((name, parsed[name]) for name in self._spec)


def _sql_literal(text: Any) -> tf.Tensor:
    """Returns an SQL literal of any string, which may be a tensor."""
    pairs = tf.constant([f"{byte:02x}" for byte in range(256)])
    digits = tf.gather(pairs, tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32))
    return tf.strings.join(["CAST(x'", tf.strings.reduce_join(digits), "' AS TEXT)"])


class ClientSource(tff.program.FederatedDataSource):
    """A source of clients for TFF's programs; see `data.tff_clients.source`."""

    def __init__(self, clients: ClientDataset, process: Any, seed: int) -> None:
        self._clients = clients
        self._type = process.next.type_signature.parameter[1]
        self._seed = seed

    @property
    def federated_type(self) -> tff.FederatedType:
        """Type of a cohort."""
        return self._type

    def iterator(self) -> _ClientIterator:
        """Returns an iterator that starts with the first cohort."""
        _ClientIterator.sources[self.key] = self
        return _ClientIterator(self.key, 0)

    @property
    def key(self) -> bytes:
        """Digest of everything that determines cohorts: seed, client ids and their type."""
        parts = [self._seed, list(self._clients.client_ids), str(self._type)]
        return hashlib.sha256(repr(parts).encode()).digest()

    def cohort(self, number: int, size: int) -> list[Examples]:
        """Returns the clients of a cohort, a function of the seed and the cohort's index."""
        ids = self._clients.client_ids
        if size > len(ids):
            raise UserError(f"clients of a round: expected at most {len(ids)}, found {size}")
        rng = np.random.default_rng([self._seed, number])
        chosen = sorted(rng.choice(len(ids), size, replace=False))
        read = (self._clients.read(ids[k]) for k in chosen)
        return [OrderedDict((key, c[key]) for key in ("x", "y", "domain_id")) for c in read]


class _ClientIterator(tff.program.FederatedDataSourceIterator):
    """Iterates over cohorts; it saves the next cohort's index and the key of the source.

    A program copies the iterator, or restores it from bytes. Neither the copy nor the bytes contain
    clients. Clients come from a `ClientSource` in this process that has the same key; if there are
    several, from the one that created an iterator last.
    """

    sources: ClassVar[dict[bytes, ClientSource]] = {}

    def __init__(self, key: bytes, number: int) -> None:
        self._key, self._number = key, number

    @classmethod
    def from_bytes(cls, buffer: bytes) -> _ClientIterator:
        """Returns the iterator that `to_bytes` saved."""
        number, key = int.from_bytes(buffer[:8], "little"), buffer[8:]
        if key not in cls.sources:
            raise UserError(
                "clients of a resumed program: expected a source of the seed, the client ids and "
                "the type that were saved, found a different source"
            )
        return cls(key, number)

    def to_bytes(self) -> bytes:
        """Returns the number of the next cohort, and the key of the source."""
        return self._number.to_bytes(8, "little") + self._key

    @property
    def federated_type(self) -> tff.FederatedType:
        """Type of a cohort."""
        return self.sources[self._key].federated_type

    def select(self, k: Optional[int] = None) -> list[Examples]:
        """Returns the next cohort of k clients."""
        if k is None:
            raise UserError("clients of a round: expected a number, found None")
        cohort = self.sources[self._key].cohort(self._number, k)
        self._number += 1
        return cohort


class _EvaluationState(NamedTuple):
    """State of an evaluation in TFF's programs: the model, and the sums so far by domain, [p]."""

    weights: ModelWeights
    losses: Any
    counts: Any


def evaluation_process(model: Any, num_domains: int) -> Any:
    """Returns a federated evaluation as a TFF learning process.

    `tff.learning.programs.EvaluationManager` can run it. Each round evaluates a cohort and leaves
    the weights unchanged. It reports losses and counts of each domain, and the worst domain's loss,
    for the round and for all rounds so far.

    Args:
        model: A `Model`, or a model of TFF.
        num_domains: Number of domains p.
    """
    converted = as_model(model)
    evaluate = build_evaluation(converted, num_domains)
    client_type = evaluate.type_signature.parameter[1]

    @tff.tensorflow.computation
    def initial() -> Any:
        weights = tf.nest.map_structure(tf.constant, converted.initial_weights)
        return _EvaluationState(weights, tf.zeros([num_domains]), tf.zeros([num_domains], tf.int64))

    state_type = initial.type_signature.result

    def domain_metrics(losses: tf.Tensor, counts: tf.Tensor) -> Any:
        means = tf.math.divide_no_nan(losses, tf.cast(counts, tf.float32))
        worst = tf.reduce_max(tf.where(counts > 0, means, tf.zeros_like(means)))
        return OrderedDict(loss=means, num_examples=counts, worst_loss=worst)

    @tff.tensorflow.computation(state_type)
    def get_weights(state: Any) -> Any:
        return state.weights

    @tff.tensorflow.computation(state_type, get_weights.type_signature.result)
    def with_weights(state: Any, weights: Any) -> Any:
        return state._replace(weights=weights)

    @tff.tensorflow.computation(state_type, evaluate.type_signature.result.member)
    def added(state: Any, output: Any) -> Any:
        now = output.sums.losses, output.sums.counts
        after = state._replace(losses=state.losses + now[0], counts=state.counts + now[1])
        rounds = OrderedDict(
            current_round_metrics=domain_metrics(*now),
            total_rounds_metrics=domain_metrics(after.losses, after.counts),
        )
        return after, OrderedDict(client_work=OrderedDict(eval=rounds))

    @tff.federated_computation
    def initialize_fn() -> Any:
        return tff.federated_eval(initial, tff.SERVER)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), client_type)
    def next_fn(state: Any, clients: Any) -> Any:
        output = evaluate(tff.federated_map(get_weights, state), clients)
        after, metrics = tff.federated_map(added, (state, output))
        return tff.learning.templates.LearningProcessOutput(after, metrics)

    return tff.learning.templates.LearningProcess(initialize_fn, next_fn, get_weights, with_weights)
