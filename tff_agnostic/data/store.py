"""Client stores read one client at a time, as datasets of parsed examples."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np

from plan_runner.client_store import ClientStore
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import digest, file_digest
from tff_agnostic.base.later import tf
from tff_agnostic.data.clients import ListedClients
from tff_agnostic.data.store_format import Feature, StoreDescription, description_of
from tff_agnostic.models.model import Examples

# A run reads a client in many rounds. A comparison has as many splits in memory as seeds.
KEPT_BYTES = 16 * 2**20


class Store(ClientStore):
    """A store, opened read-only; may be used by several threads and processes at once.

    Attributes:
        path: The file.
        description: The store's description; for a store that TFF wrote, that of its first example.
    """

    error = UserError

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"--data: expected a client store, found no file at {path}")
        super().__init__(path)
        self.description = self._description()

    def domain_counts(self, split: str) -> Optional[dict[str, dict[str, int]]]:
        """Returns {CLIENT: {DOMAIN: examples}} of a split; None in a store that TFF wrote."""
        if self.description.kind is None:
            return None
        expected = self.client_counts(split)
        counts: dict[str, dict[str, int]] = {}
        for client, domain, n in self._query(
            "SELECT client_id, domain, num_examples FROM client_domains WHERE split_name = ?",
            [split],
            (str, str, int),
        ):
            own = counts.setdefault(client, {})
            if n < 0:
                raise self._wrong_count(client, split, f"examples of domain {domain!r:.60}", n)
            if domain in own:
                raise self._wrong_count(client, split, f"domain {domain!r:.60} once", "it twice")
            own[domain] = n
        for client, own in counts.items():
            found = sum(own.values())
            if found != expected.get(client):
                in_all = f"{counted(expected.get(client, 0), 'example')} in all domains together"
                raise self._wrong_count(client, split, in_all, found)
        return counts

    def domain_table(self, split: str, counts: Mapping[str, int]) -> Optional[np.ndarray]:
        """Returns what `domain_counts` does as an array; None if that is not known.

        Args:
            counts: Of `client_counts`.

        Returns:
            int64 [clients, domains], clients in the order of `counts`, domains in that of the
            description; None also if the stored counts are not those of `counts`, or not of these
            domains, about which `domain_counts` has more to say.
        """
        if self.description.kind is None:
            return None
        domains = {name: k for k, name in enumerate(self.description.domains)}
        # Numbers only: a million clients as mappings need ten times the memory.
        places, numbers = array("q"), array("q")
        ids = enumerate(counts)
        row, current = -1, None
        for client, domain, n in self._stream(
            "SELECT client_id, domain, num_examples FROM client_domains WHERE split_name = ? "
            "ORDER BY client_id COLLATE BINARY",
            [split],
            (str, str, int),
        ):
            if client != current:
                row, current = next(ids, (row, None))
            if client != current or domain not in domains:
                return None
            places.append(row * len(domains) + domains[domain])
            numbers.append(n)
        if next(ids, None) is not None:
            return None
        table = np.zeros(len(counts) * len(domains), np.int64)
        place = np.frombuffer(places, np.int64)
        table[place] = np.frombuffer(numbers, np.int64)
        table = table.reshape(len(counts), len(domains))
        is_each_once = len(np.unique(place)) == len(place)
        totals = np.fromiter(counts.values(), np.int64, len(counts))
        # Larger numbers than the total may overflow to it.
        is_in_range = np.all((table >= 0) & (table <= totals[:, np.newaxis]))
        is_right = is_each_once and is_in_range and np.array_equal(table.sum(axis=1), totals)
        return table if is_right else None

    def sentence_lengths(self, split: str) -> dict[int, int]:
        """Returns the number of sentences of a split by their number of words."""
        lengths = dict(
            self._query(
                "SELECT words, SUM(num_sentences) FROM sentence_lengths WHERE split_name = ? "
                "GROUP BY words ORDER BY words",
                [split],
                (int, int),
            )
        )
        if any(words < 0 or n < 0 for words, n in lengths.items()):
            raise UserError(f"{self.path}: expected numbers of sentences, found negative ones")
        return lengths

    def vocabulary(self, size: Optional[int] = None) -> tuple[str, ...]:
        """Returns the most frequent words, the most frequent first.

        Args:
            size: How many; all if None.
        """
        if self.description.kind is None:
            raise UserError(f"{self.path}: expected a vocabulary, found a store without one")
        rows = self._query(
            "SELECT word FROM vocabulary ORDER BY rank LIMIT ?",
            [-1 if size is None else size],
            (str,),
        )
        if not rows:
            raise UserError(f"{self.path}: expected a vocabulary, found an empty one")
        return tuple(row[0] for row in rows)

    def digest(self) -> str:
        """Returns a short name of the whole file, which changes with any example."""
        found = _digest_of(self.path.absolute(), self._data_version)
        self.check_unchanged()
        return found

    def _description(self) -> StoreDescription:
        if self.described is not None:
            try:
                return description_of(self.described)
            except ValueError as e:
                raise UserError(f"{self.path}: {e}") from e
        first = self._query("SELECT serialized_example_proto FROM examples LIMIT 1", kinds=(bytes,))
        if not first:
            raise UserError(f"{self.path}: expected examples, found none")
        return StoreDescription(kind=None, features=features_of(first[0][0], self.path))


def vocabulary_digest(words: Sequence[str]) -> str:
    """Returns a short name of a vocabulary: equal for equal words in equal order only."""
    return digest("\n".join(words).encode())


# A store may be of many gigabytes, and a comparison opens it for every trial.
@functools.lru_cache(maxsize=8)
def _digest_of(path: Path, version: tuple[int, int]) -> str:
    del version
    return file_digest(path)


# (client id, columns of the parsed features) -> examples.
ToExamples = Callable[[str, Mapping[str, np.ndarray]], Examples]


class StoreClients(ListedClients):
    """Clients of a split; reading one touches its rows only.

    Args:
        to_examples: Makes a client's examples of its columns.
        domain_names: Names of the task's domains, in the order of their ids.
        has_row_each: Whether every example of the store becomes one example.
        most_kept: The first clients that are read stay in memory, as far as their examples have no
            more bytes than these together.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        features: Mapping[str, Feature],
        to_examples: ToExamples,
        domain_names: Sequence[str],
        has_row_each: bool = True,
        most_kept: int = KEPT_BYTES,
    ) -> None:
        self._store = store
        self._split = split
        self._features = features
        self._to_examples = to_examples
        self._domain_names = domain_names
        self._has_row_each = has_row_each
        self._most_kept = most_kept
        self._counts = store.client_counts(split)
        self._ids = list(self._counts)
        self._kept: dict[str, Examples] = {}
        self._kept_bytes = 0

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples; see `ClientDataset.read`."""
        kept = self._kept.get(client_id)
        if kept is not None:
            self._store.check_unchanged()
            return kept
        examples = self._read(client_id)
        num_bytes = sum(np.asarray(column).nbytes for column in tf.nest.flatten(examples))
        if self._kept_bytes + num_bytes <= self._most_kept:
            self._kept_bytes += num_bytes
            self._kept[client_id] = examples
        return examples

    def _read(self, client_id: str) -> Examples:
        where = f"{self._store.path}: client {client_id}"
        serialized = self._store.examples(self._split, client_id, self._counts)
        return self._to_examples(client_id, parse_examples(serialized, self._features, where))

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the examples of each client and domain, int64 [clients, p]; None if not known."""
        # A task may have domains that are not those of the store.
        if not self._has_row_each or not {*self._store.description.domains} <= {
            *self._domain_names
        }:
            return None
        table = self._store.domain_table(self._split, self._counts)
        if table is not None:
            found = np.zeros([len(table), len(self._domain_names)], np.int64)
            place = {name: k for k, name in enumerate(self._store.description.domains)}
            for k, name in enumerate(self._domain_names):
                if name in place:
                    found[:, k] = table[:, place[name]]
            return found
        counts = self._store.domain_counts(self._split)
        if counts is None:
            return None
        unknown = next((client for client in self._ids if client not in counts), None)
        if unknown is not None:
            raise UserError(
                f"{self._store.path}: expected the domains of every client in split {self._split}, "
                f"found none of client {unknown}"
            )
        return np.array(
            [[counts[client].get(name, 0) for name in self._domain_names] for client in self._ids],
            np.int64,
        )


def parse_examples(
    serialized: Sequence[bytes], features: Mapping[str, Feature], where: str
) -> dict[str, np.ndarray]:
    """Parses `tf.train.Example`s.

    Args:
        serialized: n examples.
        features: What to take from them.
        where: The client, for messages.

    Returns:
        A column of each feature, [n, *shape]; strings are bytes in object arrays.
    """
    if not features:
        return {}
    expected = ", ".join(f"{n} ({f.dtype} {list(f.shape)})" for n, f in features.items())
    smallest = min(map(len, serialized), default=0)
    for name, feature in features.items():
        # TensorFlow reserves what a shape needs before it looks; a value takes at least a byte.
        if serialized and math.prod(feature.shape) > smallest:
            raise UserError(
                f"{where}: expected examples with {expected}, found one of {smallest} bytes, which "
                f"cannot hold {name}"
            )
    spec = {
        name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype))
        for name, feature in features.items()
    }
    try:
        # The operation runs on CPUs only.
        with tf.device("CPU:0"):
            columns = tf.io.parse_example(tf.constant(list(serialized), tf.string), spec)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
        message = " ".join(str(getattr(e, "message", e)).split())
        raise UserError(f"{where}: expected examples with {expected}, found: {message}") from e
    return {name: column.numpy() for name, column in columns.items()}


def features_of(serialized: bytes, path: Path) -> dict[str, Feature]:
    """Returns what an example holds, for stores that do not describe themselves.

    Args:
        path: Its store, for messages.
    """
    try:
        example = tf.train.Example.FromString(serialized)
    except Exception as e:  # protobuf's own error type differs between its implementations.
        raise UserError(f"{path}: expected tf.train.Examples, found something else ({e})") from e
    names = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
    features = {}
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        length = len(getattr(feature, kind).value)
        features[name] = Feature(names[kind], () if length == 1 else (length,))
    return features
