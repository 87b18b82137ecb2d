"""Warnings about the content of a complete store: scales, classes, large clients, duplicates."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Callable, Optional

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import counted, some_of
from tff_agnostic.data.data_warnings import Remark, share
from tff_agnostic.data.inputs import input_vector
from tff_agnostic.data.store import ArrowStore, column_array
from tff_agnostic.data.store_format import DOMAIN, LABEL, TEST, TRAIN, StoreDescription
from tff_agnostic.importing.source import hash64

_MAX_NAMES = 5
# Warn if the largest root mean square of a feature is above this number, or above this multiple of
# the smallest one: no learning rate then fits all features.
_TIMES = 100
# Warn if one client has more than this fraction of a domain's examples, and more than
# `_TIMES_THE_MEAN` times the mean number of examples of the domain's clients.
_LARGE_SHARE = 0.2
_TIMES_THE_MEAN = 2
# Warn about a class whose shares of test and of train have at least this difference and ratio.
_OTHER_SHARE, _TIMES_THE_SHARE = 0.05, 1.5
# Maximum difference that counts as chance, in standard errors.
_ERRORS = 3.0
# Minimum fraction of duplicates for a warning: fewer may be chance, if features have few values.
_MANY_COPIES = 0.01
# Maximum number of examples for counting duplicates; each takes 16 bytes of memory.
_MAX_COUNTED = 5_000_000

# Number of examples by split, then by domain, then by name of the class; without zeros.
Classes = Mapping[str, Mapping[str, Mapping[str, int]]]


def class_counts(store: ArrowStore) -> Optional[Classes]:
    """Returns the number of examples of each class; None if labels are not classes."""
    if store.description.num_classes is None:
        return None
    counts: dict[str, dict[str, Counter[int]]] = {}
    for split in sorted(store.splits(), key=lambda name: (name != TRAIN, name)):
        for table in store.examples.batches(split):
            groups = table.select([DOMAIN, LABEL]).group_by([DOMAIN, LABEL], use_threads=False)
            for row in groups.aggregate([([], "count_all")]).to_pylist():
                domain = counts.setdefault(split, {}).setdefault(row[DOMAIN], Counter())
                domain[row[LABEL]] += row["count_all"]
    return {
        split: {
            domain: {_class_name(store.description, k): n for k, n in sorted(labels.items())}
            for domain, labels in sorted(domains.items())
        }
        for split, domains in counts.items()
    }


def class_shares(counts: Classes, description: StoreDescription) -> dict[str, dict[str, float]]:
    """Returns the fraction of each class in each split, in the order of labels."""
    names = description.class_names
    label: Callable[[str], int] = int
    if names is not None:
        label = names.index
    shares = {}
    for split, domains in counts.items():
        total = sum(map(Counter, domains.values()), Counter[str]())
        shares[split] = {name: total[name] / total.total() for name in sorted(total, key=label)}
    return shares


def _class_name(description: StoreDescription, label: int) -> str:
    """Returns the name of a class, or its number if classes have no names."""
    return str(label) if description.class_names is None else description.class_names[label]


def class_remarks(counts: Classes, description: StoreDescription) -> Iterator[Remark]:
    """Yields warnings about a single class, unused classes, and classes missing in train."""
    train, test = counts.get(TRAIN, {}), counts.get(TEST, {})
    present = {name for domain in train.values() for name in domain}
    if len(present) == 1:
        (name,) = present
        text = f"All examples of train are of class {name}: there is nothing to distinguish."
        yield Remark("one_class", text, {"class": name})
    used = {name for domains in counts.values() for domain in domains.values() for name in domain}
    num_classes = description.num_classes or 0
    unused = num_classes - len(used)
    if unused:
        names = (_class_name(description, k) for k in range(num_classes))
        some = [*itertools.islice((name for name in names if name not in used), _MAX_NAMES)]
        more = f" and {unused - len(some)} more" if unused > len(some) else ""
        yield Remark(
            "unused_classes",
            f"{unused} of {num_classes} classes have no example: {', '.join(some)}{more}; a model "
            "has an output for each. Classes count from 0; class_names=A,B gives values of the "
            "file their numbers.",
            {"unused": unused, "classes": num_classes, "some": some},
        )
    # Skip domains without any training example, as another warning is about them.
    absent = {
        domain: {name: n for name, n in classes.items() if name not in train[domain]}
        for domain, classes in test.items()
        if domain in train and classes.keys() - train[domain].keys()
    }
    if absent:
        some = [
            f"{domain} ({', '.join(f'{name}: {n}' for name, n in classes.items())})"
            for domain, classes in absent.items()
        ]
        yield Remark(
            "classes_not_in_train",
            f"In {counted(len(absent), 'domain')} a class is in test and not in train: "
            f"{some_of(some, _MAX_NAMES)}. Results there say little of the training; "
            "split_by=example or another seed=N divides differently.",
            {"domains": absent},
        )


def share_remarks(
    shares: Mapping[str, Mapping[str, float]], num_examples: Mapping[str, int]
) -> Iterator[Remark]:
    """Yields a warning about classes that are rarer or more frequent in test than in train.

    Args:
        shares: Fraction of each class in each split.
        num_examples: Number of examples in each split.
    """
    train, test = shares.get(TRAIN, {}), shares.get(TEST, {})
    if not train or not test:
        return
    variance = 1 / num_examples[TRAIN] + 1 / num_examples[TEST]

    def is_chance(name: str) -> bool:
        in_all = sum(shares[s][name] * num_examples[s] for s in (TRAIN, TEST))
        p = in_all / (num_examples[TRAIN] + num_examples[TEST])
        return abs(train[name] - test[name]) < _ERRORS * math.sqrt(p * (1 - p) * variance)

    other = {
        name: [train[name], test[name]]
        for name in train.keys() & test.keys()
        if abs(train[name] - test[name]) > _OTHER_SHARE
        and max(train[name], test[name]) > _TIMES_THE_SHARE * min(train[name], test[name])
        and not is_chance(name)
    }
    if other:
        some = [f"{name} ({a:.0%}, {b:.0%})" for name, (a, b) in sorted(other.items())]
        yield Remark(
            "class_shares",
            f"Classes have other shares of train than of test: {some_of(some, _MAX_NAMES)}.",
            {"classes": dict(sorted(other.items()))},
        )


def number_remarks(description: StoreDescription) -> Iterator[Remark]:
    """Yields a warning about features whose scales differ much, or are very large."""
    sizes = {
        entry.name or f"{name}[{k}]": entry.statistics.size
        for name in description.statistics
        for k, entry in enumerate(input_vector(description, name))
        if entry.statistics is not None and entry.statistics.size > 0
    }
    if not sizes or description.is_standardized:
        return
    largest, smallest = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    if sizes[largest] <= _TIMES * min(1.0, sizes[smallest]):
        return
    large = [f"{name} ({size:.3g})" for name, size in sizes.items() if size > _TIMES]
    listed = some_of(large or [f"{largest} ({sizes[largest]:.3g})"], _MAX_NAMES)
    compared = f", {smallest} ({sizes[smallest]:.3g})" if smallest != largest else ""
    yield Remark(
        "scales",
        f"Numbers differ much in size, or are far from 1: {listed}{compared}, by the root of the "
        "mean of squares. No learning rate fits both: standardize=true brings each to mean 0 and "
        "standard deviation 1, or a model divides by data.x_deviation.",
        {"sizes": sizes},
    )


def large_clients(store: ArrowStore) -> Iterator[Remark]:
    """Yields a warning about domains where one training client has many of the examples."""
    table, clients = store.domain_table(TRAIN), store.client_ids(TRAIN)
    totals, holders = table.sum(axis=0), (table > 0).sum(axis=0)
    large = {}
    for k, domain in sorted(enumerate(store.description.domains), key=lambda item: item[1]):
        row = int(np.argmax(table[:, k]))
        n, total = int(table[row, k]), int(totals[k])
        if n > _LARGE_SHARE * total and n * int(holders[k]) > _TIMES_THE_MEAN * total:
            large[domain] = {"client": clients[row], "examples": n, "of": total}
    if large:
        some = [
            f"{d} ({one['client']}: {one['examples']} of {one['of']})" for d, one in large.items()
        ]
        yield Remark(
            "large_clients",
            f"In {len(large)} of {int((totals > 0).sum())} domains one client has more than a "
            f"fifth of the training examples: {some_of(some, _MAX_NAMES)}; their models are mostly "
            "this client's, and max_examples=N limits it.",
            {"domains": large},
        )


def copy_counts(store: ArrowStore) -> Optional[dict[str, dict[str, int]]]:
    """Counts duplicates: examples with the features, label and domain of another example.

    Returns:
        Counts by split: "examples", all examples; "of_client", duplicates of an example of the same
        client; "in_train", duplicates of an example of train. None for texts without labels, which
        repeat often, and for more than `_MAX_COUNTED` examples.
    """
    if LABEL not in store.description.features or len(store.examples.table) > _MAX_COUNTED:
        return None
    train = np.empty([0], np.uint64)
    copies = {}
    for split in sorted(store.splits(), key=lambda name: (name != TRAIN, name)):
        hashes = np.concatenate([_hashes(table) for table in store.examples.batches(split)])
        counts = [count for _, count in sorted(store.examples.rows[split].values())]
        clients = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort([hashes, clients])
        is_copy = (np.diff(hashes[order]) == 0) & (np.diff(clients[order]) == 0)
        copies[split] = {"examples": len(hashes), "of_client": int(is_copy.sum())}
        if split == TRAIN:
            train = np.unique(hashes)
        else:
            copies[split]["in_train"] = int(np.isin(hashes, train).sum())
    return copies


def _hashes(table: pa.Table) -> np.ndarray:
    """Returns 64-bit hashes of examples; two of ten million collide with probability 3e-6."""
    parts = []
    for name in sorted(table.column_names):
        if pa.types.is_string(table[name].type):
            coded = table[name].combine_chunks().dictionary_encode()
            texts = [hash64(text) for text in coded.dictionary.to_pylist()]
            column = np.array(texts, np.uint64)[np.asarray(coded.indices)]
        else:
            column = column_array(table[name], [-1])
        parts.append(np.ascontiguousarray(column).reshape(len(table), -1).view(np.uint8))
    rows = np.concatenate(parts, axis=1)
    return np.fromiter((hash64(row) for row in rows), np.uint64, len(rows))


def copy_remarks(copies: Mapping[str, Mapping[str, int]]) -> Iterator[Remark]:
    """Yields warnings about many duplicates."""
    total = sum(split["examples"] for split in copies.values())
    copied = sum(split["of_client"] for split in copies.values())
    if copied >= _MANY_COPIES * total:
        yield Remark(
            "copies",
            f"{share(copied, total)} of the examples ({copied} of {total}) are copies of "
            "another example of their client.",
            {"copies": copied, "examples": total},
        )
    for split, counts in copies.items():
        n, examples = counts.get("in_train", 0), counts["examples"]
        if split != TRAIN and n >= _MANY_COPIES * examples:
            yield Remark(
                "copies_in_train",
                f"{share(n, examples)} of the examples of {split} ({n} of {examples}) equal an "
                "example of train in all columns. Of coarse columns that is expected; of copied "
                "rows, results on them are too good.",
                {"split": split, "copies": n, "examples": examples},
            )
