"""What a finished store holds: numbers, classes by domain, large clients, and copies."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from tff_agnostic.base.errors import counted, some_of
from tff_agnostic.data.data_warnings import Remark, share
from tff_agnostic.data.inputs import vector_of
from tff_agnostic.data.store import ArrowStore, column_of
from tff_agnostic.data.store_format import (
    DOMAIN,
    LABEL,
    TRAIN,
    Feature,
    NumberStatistics,
    StoreDescription,
)
from tff_agnostic.importing.source import hash64

TEST = "test"
# A wider or longer table cannot be read; the JSON report has every class and number.
_MAX_CLASSES = 10
_MAX_ROWS = 60
_MAX_NUMBERS = 40
_MAX_NAMES = 5
# Numbers so many times as large as others, or as 1: one learning rate cannot fit both.
_TIMES = 100
# A client with more of a domain's examples is named, if it is also so many times the mean client.
_LARGE_SHARE = 0.2
_TIMES_THE_MEAN = 2
# Fewer copies may be chance, where features have few values.
_MANY_COPIES = 0.01
# Each takes 16 bytes of memory: 320 MB.
_MAX_COUNTED = 20_000_000


class Numbers(NamedTuple):
    """The numbers of a store.

    Attributes:
        statistics: Of training clients, by what each number is called.
        are_standardized: Whether the store has them with mean 0 and deviation 1.
    """

    statistics: Mapping[str, NumberStatistics]
    are_standardized: bool

    def table(self) -> Optional[str]:
        """Returns the statistics for people; None where there are none, or too many to read."""
        if not 0 < len(self.statistics) <= _MAX_NUMBERS:
            return None
        rows = [
            [name, one.mean, one.deviation, one.least, one.most, one.missing]
            for name, one in self.statistics.items()
        ]
        headers = ["number", "mean", "deviation", "least", "most", "missing"]
        how = ", before they are standardized" if self.are_standardized else ""
        table = tabulate(rows, headers=headers, floatfmt=".4g")
        return f"Numbers of the training clients{how}:\n{table}"

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return {
            "standardized": self.are_standardized,
            "statistics": {name: dataclasses.asdict(one) for name, one in self.statistics.items()},
        }

    def remarks(self) -> list[Remark]:
        """Returns the warning about numbers of very different sizes, or far from 1."""
        sizes = {name: one.size for name, one in self.statistics.items() if one.size > 0}
        if not sizes or self.are_standardized:
            return []
        largest, smallest = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        if sizes[largest] <= _TIMES * min(1.0, sizes[smallest]):
            return []
        large = [f"{name} ({size:.3g})" for name, size in sizes.items() if size > _TIMES]
        told = some_of(large or [f"{largest} ({sizes[largest]:.3g})"], _MAX_NAMES)
        beside = f" beside {smallest} ({sizes[smallest]:.3g})" if smallest != largest else ""
        return [
            Remark(
                "scales",
                f"Numbers differ much in size, or are far from 1: {told}{beside}, by the root of "
                "the mean of squares. No learning rate fits both: standardize=true brings each to "
                "mean 0 and deviation 1, or a model divides by data.x_deviation.",
                {"sizes": sizes},
            )
        ]


def numbers_of(description: StoreDescription) -> Numbers:
    """Returns the numbers of a finished store."""
    found = {}
    for name in description.statistics:
        for k, entry in enumerate(vector_of(description, name)):
            if entry.statistics is not None:
                found[entry.name or f"{name}[{k}]"] = entry.statistics
    return Numbers(found, description.is_standardized)


class ClassCounts(NamedTuple):
    """How many examples of each class there are.

    Attributes:
        num_classes: K; labels are below it.
        class_names: Names of the classes, if they have any.
        counts: By split, then domain, then class; of a class without examples there is none.
    """

    num_classes: int
    class_names: Optional[Sequence[str]]
    counts: Mapping[str, Mapping[str, Mapping[int, int]]]

    def name(self, label: int) -> str:
        """Returns the name of a class; its number, if it has none."""
        return str(label) if self.class_names is None else self.class_names[label]

    def table(self) -> Optional[str]:
        """Returns the counts for people; None where there are too many to read."""
        rows = [
            [
                split,
                domain,
                *(classes.get(k, 0) for k in range(min(self.num_classes, _MAX_CLASSES))),
            ]
            for split, domains in self.counts.items()
            for domain, classes in domains.items()
        ]
        if self.num_classes > _MAX_CLASSES or len(rows) > _MAX_ROWS:
            return None
        headers = ["split", "domain", *map(self.name, range(self.num_classes))]
        return "Examples of each class:\n" + tabulate(rows, headers=headers)

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """Returns them by split, domain and class, without zeros."""
        return {
            split: {
                domain: {self.name(k): classes[k] for k in sorted(classes)}
                for domain, classes in domains.items()
            }
            for split, domains in self.counts.items()
        }

    def remarks(self) -> list[Remark]:
        """Returns warnings about classes that cannot be learnt, or that nobody has."""
        return [*self._one_class(), *self._unused(), *self._not_in_train()]

    def _one_class(self) -> list[Remark]:
        present = {k for classes in self.counts.get(TRAIN, {}).values() for k in classes}
        if len(present) != 1:
            return []
        name = self.name(*present)
        return [
            Remark(
                "one_class",
                f"All examples of train are of class {name}: there is nothing to tell apart.",
                {"class": name},
            )
        ]

    def _unused(self) -> list[Remark]:
        used = {
            k for domains in self.counts.values() for classes in domains.values() for k in classes
        }
        unused = self.num_classes - len(used)
        if not unused:
            return []
        first = itertools.islice((k for k in range(self.num_classes) if k not in used), _MAX_NAMES)
        some = [self.name(k) for k in first]
        more = f" and {unused - len(some)} more" if unused > len(some) else ""
        return [
            Remark(
                "unused_classes",
                f"{unused} of {self.num_classes} classes have no example: {', '.join(some)}{more}; "
                "a model has an output for each. Classes count from 0; class_names=A,B gives "
                "values of the file their numbers.",
                {"unused": unused, "classes": self.num_classes, "some": some},
            )
        ]

    def _not_in_train(self) -> list[Remark]:
        train, found = self.counts.get(TRAIN, {}), {}
        for domain, tested in self.counts.get(TEST, {}).items():
            # Of a domain without any training example another warning speaks.
            missing = {
                self.name(k): n for k, n in tested.items() if k not in train.get(domain, tested)
            }
            if missing:
                found[domain] = missing
        if not found:
            return []
        some = [
            f"{domain} ({', '.join(f'{name}: {n}' for name, n in classes.items())})"
            for domain, classes in found.items()
        ]
        return [
            Remark(
                "classes_not_in_train",
                f"In {counted(len(found), 'domain')} a class is in test and not in train: "
                f"{some_of(some, _MAX_NAMES)}. Results there say little of the training; "
                "split_by=example or another seed=N divides differently.",
                {"domains": found},
            )
        ]


class Copies(NamedTuple):
    """Examples that are there more than once, with all their features, label and domain.

    Attributes:
        of_client: By split: examples that the same client has before.
        in_train: By other split: examples that train has, too.
        examples: By split: all examples.
    """

    of_client: Mapping[str, int]
    in_train: Mapping[str, int]
    examples: Mapping[str, int]

    def remarks(self) -> list[Remark]:
        """Returns warnings about many copies."""
        found = []
        copies, total = sum(self.of_client.values()), sum(self.examples.values())
        if copies >= _MANY_COPIES * total:
            found.append(
                Remark(
                    "copies",
                    f"{share(copies, total)} of the examples ({copies} of {total}) are copies of "
                    "another example of their client.",
                    {"copies": copies, "examples": total},
                )
            )
        for split, n in self.in_train.items():
            of_split = self.examples[split]
            if n >= _MANY_COPIES * of_split:
                found.append(
                    Remark(
                        "copies_in_train",
                        f"{share(n, of_split)} of the examples of {split} ({n} of {of_split}) "
                        "equal an example of train in all columns. Of coarse columns that is "
                        "expected; of copied rows, results on them are too good.",
                        {"split": split, "copies": n, "examples": of_split},
                    )
                )
        return found


class Contents(NamedTuple):
    """What the examples of a store hold.

    Attributes:
        numbers: Statistics of the numbers.
        classes: Counts of classes; None where labels count none.
        copies: None of texts without labels, whose sentences come again and again, and of too many
            examples to remember.
    """

    numbers: Numbers
    classes: Optional[ClassCounts]
    copies: Optional[Copies]


def contents_of(store: ArrowStore) -> Contents:
    """Returns the contents of a complete store, in one pass over its examples."""
    description = store.description
    numbers = numbers_of(description)
    if LABEL not in description.features:
        return Contents(numbers, None, None)
    counts: Counter[tuple[str, str, int]] = Counter()
    digests: dict[str, list[np.ndarray]] = {}
    clients: dict[str, list[np.ndarray]] = {}
    is_counted = len(store.examples.table) <= _MAX_COUNTED
    for split in store.splits():
        starts = np.sort([first for first, _ in store.examples.rows[split].values()])
        for first, table in store.examples.batches(split):
            if description.num_classes is not None:
                pairs = table.select([DOMAIN, LABEL]).group_by([DOMAIN, LABEL])
                for row in pairs.aggregate([([], "count_all")]).to_pylist():
                    counts[split, row[DOMAIN], row[LABEL]] += row["count_all"]
            if is_counted:
                digests.setdefault(split, []).append(_digests(table, description.features))
                rows = np.arange(first, first + len(table))
                clients.setdefault(split, []).append(np.searchsorted(starts, rows, "right"))
    classes = None
    if description.num_classes is not None:
        classes = ClassCounts(description.num_classes, description.class_names, _nested(counts))
    return Contents(numbers, classes, _copies(digests, clients) if is_counted else None)


def _digests(table: pa.Table, features: Mapping[str, Feature]) -> np.ndarray:
    """Returns 64 bits of a hash of each example: two of ten million agree once in 300,000."""
    total = np.zeros(len(table), np.uint64)
    for k, (name, feature) in enumerate(sorted(features.items())):
        if feature.dtype == "string":
            coded = table[name].combine_chunks().dictionary_encode()
            hashes = np.array([hash64(text) for text in coded.dictionary.to_pylist()], np.uint64)
            bits = hashes[np.asarray(coded.indices)][:, np.newaxis]
        else:
            values = column_of(table[name], feature.shape).reshape(len(table), -1)
            bits = np.ascontiguousarray(values).view(f"u{values.itemsize}").astype(np.uint64)
        salts = np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * _MULTIPLIERS[0]
        total += _mixed(_mixed(bits + salts) * np.uint64(2 * k + 1)).sum(axis=1, dtype=np.uint64)
    return total


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Returns bits that depend on all bits: the finalizer of SplitMix64."""
    for shift, multiplier in zip((30, 27), _MULTIPLIERS[1:]):
        bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed


_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def _copies(
    digests: Mapping[str, Sequence[np.ndarray]], clients: Mapping[str, Sequence[np.ndarray]]
) -> Copies:
    """Counts copies by digests of examples and indices of their clients, by split."""
    examples = {split: np.concatenate(parts) for split, parts in digests.items()}
    of_client = {}
    for split, hashes in examples.items():
        client = np.concatenate(clients[split]).astype(np.uint64)
        keys = _mixed(hashes ^ _mixed(client * _MULTIPLIERS[0]))
        of_client[split] = len(keys) - len(np.unique(keys))
    train = np.unique(examples.get(TRAIN, np.empty([0], np.uint64)))
    in_train = {
        split: int(np.count_nonzero(np.isin(hashes, train)))
        for split, hashes in examples.items()
        if split != TRAIN
    }
    return Copies(of_client, in_train, {split: len(h) for split, h in examples.items()})


def _nested(
    counts: Mapping[tuple[str, str, int], int],
) -> dict[str, dict[str, dict[int, int]]]:
    nested: dict[str, dict[str, dict[int, int]]] = {}
    for split, domain, label in sorted(counts, key=lambda key: (key[0] != TRAIN, key)):
        nested.setdefault(split, {}).setdefault(domain, {})[label] = counts[split, domain, label]
    return nested


def large_clients(rows: Iterable[tuple[str, str, int]]) -> list[Remark]:
    """Returns the warning about domains of which one training client has much.

    Args:
        rows: (client, domain, examples) of the training split.
    """
    totals: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    largest: dict[str, tuple[int, str]] = {}
    for client, domain, n in rows:
        totals[domain] += n
        clients[domain] += 1
        largest[domain] = max(largest.get(domain, (0, "")), (n, client))
    found = {
        domain: {"client": client, "examples": n, "of": totals[domain]}
        for domain, (n, client) in sorted(largest.items())
        if n > _LARGE_SHARE * totals[domain]
        and n * clients[domain] > _TIMES_THE_MEAN * totals[domain]
    }
    if not found:
        return []
    some = some_of(
        [
            f"{domain} ({one['client']}: {one['examples']} of {one['of']})"
            for domain, one in found.items()
        ],
        _MAX_NAMES,
    )
    return [
        Remark(
            "large_clients",
            f"In {len(found)} of {len(totals)} domains one client has more than a fifth of the "
            f"training examples: {some}; what is learnt there is mostly its own, and "
            "max_examples=N limits it.",
            {"domains": found},
        )
    ]
