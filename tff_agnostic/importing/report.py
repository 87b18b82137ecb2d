"""The report of an import: counts, sizes, skewness, and warnings about the store."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.base.errors import agreeing, counted, some_of
from tff_agnostic.base.text_ids import SEQUENCE_LENGTH
from tff_agnostic.data.data_warnings import Remark, cut_words, domains_without, share, small_domains
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.importing.cells import CategorySummary
from tff_agnostic.importing.contents import Contents, contents_of, large_clients
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.importing.splits import TRAIN, Stratum, parse_shares
from tff_agnostic.importing.text import VocabularySummary

_ALIGNED = ("left", "left", "right", "right", "right", "right")
# A larger matrix cannot be read any more; the JSON report has it all.
_MAX_MATRIX = 12
# Fraction of markup among the words from which a warning is printed.
_MUCH_MARKUP = 0.02
# Signs that prose hardly has.
_MARKUP_SIGNS = frozenset("\\{}^_$`|<>~=")
_LARGE = 0.5
# Larger whole numbers have gaps in float32.
_MAX_EXACT = 2**24
_MAX_NAMES = 5


@dataclasses.dataclass(frozen=True)
class Count:
    """How much there is of something."""

    clients: int
    examples: int


@dataclasses.dataclass(frozen=True)
class SplitSummary:
    """The content of one split.

    Attributes:
        total: All of it.
        domains: By domain; a client with examples of several counts in each.
        clients_by_num_domains: How many clients have examples of that many domains.
        shared: How many clients have examples of both domains of a pair.
    """

    total: Count
    domains: Mapping[str, Count]
    clients_by_num_domains: Mapping[int, int]
    shared: Mapping[tuple[str, str], int]

    def clients_with(self, a: str, b: str) -> int:
        """Returns how many clients have examples of two domains, which may be one."""
        if a == b:
            return self.domains[a].clients if a in self.domains else 0
        return self.shared.get((min(a, b), max(a, b)), 0)

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return {
            **dataclasses.asdict(self.total),
            "domains": {name: dataclasses.asdict(count) for name, count in self.domains.items()},
            "clients_by_number_of_domains": {
                str(k): n for k, n in self.clients_by_num_domains.items()
            },
            "clients_in_both": [
                {"domains": list(pair), "clients": n} for pair, n in self.shared.items()
            ],
        }


@dataclasses.dataclass(frozen=True)
class Skewness:
    """s(Lambda || m) of Mohri et al. 2019, eq. 4, where Lambda is the whole simplex.

    Attributes:
        value: m / m_k of the rarest domain k; p when all p domains are as frequent.
        rarest: That domain.
        num_examples: m_k, of that domain.
        num_domains: p.
    """

    value: float
    rarest: str
    num_examples: int
    num_domains: int

    def meaning(self) -> str:
        """Returns what it means for the choice of domains."""
        if self.num_domains == 1:
            return f"There is one domain, {self.rarest}: nothing to weigh against one another."
        # The bound of theorem 1 has s / m under its root, which is 1 / m_k.
        return (
            f"Skewness s(Lambda || m) on the training split: {self.value:.1f}; "
            f"{self.num_domains} domains of equal size would have {self.num_domains}. For the "
            "worst mixture of domains the learning bound is only as good as "
            f"the {counted(self.num_examples, 'example')} of {self.rarest} "
            f"{'makes' if self.num_examples == 1 else 'make'} it: if that is few, merge "
            "it with a domain that is like it, or collect more of it."
        )


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A distribution of sizes.

    Attributes:
        count: How many things there are.
        total: Their sizes together.
        median: Half of them are at most as large.
        most: Nine in ten of them are.
        nearly_all: 99 in a hundred are.
        largest: All of them are.
    """

    count: int
    total: int
    median: int
    most: int
    nearly_all: int
    largest: int

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Sizes:
        """Returns the distribution of things by their size, at least one of them."""
        sizes = np.array(sorted(counts), np.int64)
        up_to = np.cumsum([counts[size] for size in sizes.tolist()])
        total = int(up_to[-1])

        def at(share: float) -> int:
            return int(sizes[np.searchsorted(up_to, share * total - 1e-9)])

        return cls(
            count=total,
            total=sum(size * count for size, count in counts.items()),
            median=at(0.5),
            most=at(0.9),
            nearly_all=at(0.99),
            largest=int(sizes[-1]),
        )

    def text(self, things: str, parts: str) -> str:
        """Returns a line for people, such as of sentences and their words."""
        return (
            f"{self.count} {things} have {self.total} {parts}: half of them at most {self.median}, "
            f"nine in ten {self.most}, 99% {self.nearly_all}, the largest {self.largest}."
        )


@dataclasses.dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        store: The file.
        format: Format of the source.
        num_records: Records that were read.
        splits: The content of each split.
        skipped: Records that were left out, by reason.
        clients_without_examples: Number of clients without a kept example.
        skewness: Skewness of the training split.
        vocabulary: Vocabulary of a text store.
        categories: The values of each categorical column, kept and left out.
        missing: How many examples lack the value of a column, by column.
        client_sizes: Examples of the training clients.
        sentence_lengths: Words of the sentences to train on, in a text store.
        contents: Numbers, classes and copies of the examples.
        remarks: Warnings for whoever trains on it.
    """

    store: Path
    format: str
    num_records: int
    splits: Mapping[str, SplitSummary]
    skipped: Mapping[str, int]
    clients_without_examples: int
    skewness: Skewness
    vocabulary: Optional[VocabularySummary]
    categories: Mapping[str, CategorySummary]
    missing: Mapping[str, int]
    client_sizes: Sizes
    sentence_lengths: Optional[Sizes]
    contents: Contents
    remarks: Sequence[Remark]

    def text(self) -> str:
        """Returns tables and sentences for people."""
        parts = [self._counts_table()]
        if len(self._domains()) > 1:
            parts.append(self._overlap_table())
        if classes := self.contents.classes and self.contents.classes.table():
            parts.append(classes)
        if self.skipped:
            parts.append(
                f"Left out, of {counted(self.num_records, 'record')}:\n"
                + tabulate(self.skipped.items(), tablefmt="plain")
            )
        if self.clients_without_examples:
            left_out = counted(self.clients_without_examples, "client")
            parts.append(f"Left out, without a kept example: {left_out}")
        if self.vocabulary is not None:
            parts.append(self.vocabulary.text())
        parts += self._about_columns()
        sizes = [self.client_sizes.text("clients of train", "examples")]
        if self.sentence_lengths is not None:
            sizes.append(self.sentence_lengths.text("sentences of train", "words"))
        parts += ["\n".join(sizes), self.skewness.meaning()]
        if self.remarks:
            parts.append("\n".join(f"Note: {remark.text}" for remark in self.remarks))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return {
            "store": str(self.store),
            "format": self.format,
            "records": self.num_records,
            "splits": {name: split.to_json() for name, split in self.splits.items()},
            "skipped": dict(self.skipped),
            "clients_without_examples": self.clients_without_examples,
            "skewness": dataclasses.asdict(self.skewness),
            "vocabulary": self.vocabulary and dataclasses.asdict(self.vocabulary),
            "categories": {
                column: dataclasses.asdict(summary) for column, summary in self.categories.items()
            },
            "missing": dict(self.missing),
            "client_sizes": dataclasses.asdict(self.client_sizes),
            "sentence_lengths": self.sentence_lengths and dataclasses.asdict(self.sentence_lengths),
            "classes": self.contents.classes and self.contents.classes.to_json(),
            "numbers": self.contents.numbers.to_json(),
            "copies": self.contents.copies and self.contents.copies._asdict(),
            "remarks": [remark.to_json() for remark in self.remarks],
        }

    def _about_columns(self) -> Iterator[str]:
        if numbers := self.contents.numbers.table():
            yield numbers
        if self.categories:
            lines = [summary.text(column) for column, summary in self.categories.items()]
            yield "Categories of the training clients:\n" + "\n".join(lines)
        if self.missing:
            yield "Examples without a value, by column:\n" + tabulate(
                self.missing.items(), tablefmt="plain"
            )

    def _domains(self) -> list[str]:
        return sorted({domain for split in self.splits.values() for domain in split.domains})

    def _counts_table(self) -> str:
        of_domain = Counter[str]()
        for split in self.splits.values():
            of_domain.update({domain: n.examples for domain, n in split.domains.items()})
        everything = sum(of_domain.values())
        rows: list[list[Any]] = []
        for name, split in self.splits.items():
            rows += [
                [
                    name,
                    domain,
                    *(n.clients, n.examples),
                    f"{n.examples / split.total.examples:.1%}",
                    f"{n.examples / of_domain[domain]:.1%}",
                ]
                for domain, n in split.domains.items()
            ]
            total = split.total
            share = f"{total.examples / everything:.1%}"
            rows.append([name, "all", total.clients, total.examples, "", share])
        headers = ["split", "domain", "clients", "examples", "of the split", "of the domain"]
        return tabulate(rows, headers=headers, colalign=_ALIGNED)

    def _overlap_table(self) -> str:
        domains = self._domains()
        lines = []
        for name, split in self.splits.items():
            several = sum(n for k, n in split.clients_by_num_domains.items() if k > 1)
            lines.append(
                f"{several} of the {counted(split.total.clients, 'client')} of {name} "
                f"{agreeing(several, 'has', 'have')} examples of more than one domain."
            )
        train = self.splits[TRAIN]
        if len(domains) > _MAX_MATRIX or not train.shared:
            return "\n".join(lines)
        rows = [[a, *(train.clients_with(a, b) for b in domains)] for a in domains]
        title = f"\nClients of {TRAIN} with examples of both domains:\n"
        return "\n".join(lines) + "\n" + title + tabulate(rows, headers=["", *domains])


def summarise(
    store: ArrowStore,
    path: Path,
    options: ImportOptions,
    log: ReadLog,
    vocabulary: Optional[VocabularySummary],
    categories: Mapping[str, CategorySummary],
    strata: Mapping[str, Stratum],
) -> ImportReport:
    """Returns the report of a complete store.

    Args:
        store: The store.
        path: The store's later place.
        vocabulary: The words of a text store, kept and left out.
        categories: The values of each categorical column, kept and left out.
        strata: The units of the splits, by domain.
    """
    names = sorted(store.splits(), key=lambda name: (name != TRAIN, name))
    splits = {name: _summary_of_split(store, name) for name in names}
    sizes = Counter(store.client_counts(TRAIN).values())
    lengths = store.sentence_lengths(TRAIN)
    contents = contents_of(store)
    large = large_clients(
        (client, domain, n)
        for client, row in zip(store.client_ids(TRAIN), store.domain_table(TRAIN).tolist())
        for domain, n in zip(store.description.domains, row)
        if n
    )
    examples = {
        name: {domain: n.examples for domain, n in split.domains.items()}
        for name, split in splits.items()
    }
    # Only splits that are made here have shares to keep.
    wanted = list(parse_shares(options.split)) if strata else []
    remarks = [
        *domain_remarks(examples, wanted, options.min_domain_examples),
        *large_units(strata, options),
        *large,
        *(contents.classes.remarks() if contents.classes else []),
        *contents.numbers.remarks(),
        *(contents.copies.remarks() if contents.copies else []),
        *reading_remarks(log),
        *sentence_remarks(lengths),
        *markup_remarks(store.word_counts(), options),
    ]
    return ImportReport(
        store=path,
        format=options.format,
        num_records=log.num_records,
        splits=splits,
        skipped=dict(log.skipped.most_common()),
        clients_without_examples=log.clients_without_examples(),
        skewness=skewness({d: n.examples for d, n in splits[TRAIN].domains.items()}),
        vocabulary=vocabulary,
        categories=categories,
        missing=dict(log.missing.most_common()),
        client_sizes=Sizes.of(sizes),
        sentence_lengths=Sizes.of(lengths) if lengths else None,
        contents=contents,
        remarks=remarks,
    )


def skewness(examples: Mapping[str, int]) -> Skewness:
    """Returns the skewness for the numbers of examples by domain, all positive."""
    rarest = min(examples, key=lambda domain: (examples[domain], domain))
    return Skewness(
        sum(examples.values()) / examples[rarest], rarest, examples[rarest], len(examples)
    )


def _summary_of_split(store: ArrowStore, split: str) -> SplitSummary:
    """Returns the content of a split of a store."""
    table, names = store.domain_table(split), store.description.domains
    is_present = (table > 0).astype(np.int64)
    clients, examples = is_present.sum(axis=0).tolist(), table.sum(axis=0).tolist()
    shared = is_present.T @ is_present
    by_number = Counter(is_present.sum(axis=1).tolist())
    pairs = {
        (min(a, b), max(a, b)): int(shared[i, j])
        for (i, a), (j, b) in itertools.combinations(enumerate(names), 2)
        if shared[i, j]
    }
    counts = {name: Count(*n) for name, *n in zip(names, clients, examples) if n[0]}
    return SplitSummary(
        total=Count(len(table), int(table.sum())),
        domains=dict(sorted(counts.items())),
        clients_by_num_domains=dict(sorted(by_number.items())),
        shared=dict(sorted(pairs.items())),
    )


def is_markup(word: str) -> bool:
    """Returns whether a word is signs of markup or formulas; a special word, as <url>, is none."""
    return not _MARKUP_SIGNS.isdisjoint(word) and not (
        word.startswith("<") and word.endswith(">") and len(word) > 2
    )


def domain_remarks(
    examples: Mapping[str, Mapping[str, int]], wanted: Sequence[str], fewest: int
) -> list[Remark]:
    """Returns warnings about domains with no or few examples in a split.

    Args:
        examples: Examples of each domain, by split.
        wanted: Names of the splits that there ought to be.
        fewest: How many examples of a domain are not few.
    """
    domains = sorted({name for split in examples.values() for name in split})
    found: list[Remark] = []
    for split in SPLIT_NAMES:
        if split in wanted or split in examples:
            counts = {name: examples.get(split, {}).get(name, 0) for name in domains}
            found += domains_without(counts, split)
            if split != "heldout":
                found += small_domains(counts, split, fewest)
    return found


def large_units(strata: Mapping[str, Stratum], options: ImportOptions) -> list[Remark]:
    """Returns warnings about domains that mostly cannot be divided.

    Args:
        strata: What the splits kept together, by domain.
    """
    names = [name for name, s in strata.items() if s.largest > _LARGE * s.examples]
    if not names or len(options.split) < 2 or options.split_by == "example":
        return []
    some = some_of(names, _MAX_NAMES)
    return [
        Remark(
            "large_units",
            f"In {len(names)} of {len(strata)} domains a single {options.split_by} has over half "
            f"of the examples, so that shares cannot be kept: {some}; "
            f"{_smaller_units(options)}",
            {"split_by": options.split_by, "domains": names},
        )
    ]


def _smaller_units(options: ImportOptions) -> str:
    if options.format != "text_folders":
        return "split_by=example divides every client's examples."
    if options.split_by == "group":
        return "sentences_per_group=N cuts files into several groups."
    return "sentences_per_client=N cuts files into several clients."


def reading_remarks(log: ReadLog) -> list[Remark]:
    """Returns notes about clients, names, numbers and characters that were changed."""
    remarks = []
    if log.rows_are_clients:
        text = "Each row is a client, as client_column=row says: no client has several examples."
        remarks.append(Remark("rows_are_clients", text, {}))
    for column, spellings in log.renamed.items():
        spelling, name = next(iter(spellings.items()))
        remarks.append(
            Remark(
                "names",
                f"{counted(len(spellings), 'spelling')} of names in {column} were changed, such "
                f"as {spelling!r} to {name!r}: blanks at the ends and forms of Unicode make no "
                "other client or domain, and 17.0 is 17.",
                {"column": column, "spellings": dict(spellings)},
            )
        )
    if log.rounded:
        some = some_of([f"{column} ({n})" for column, n in log.rounded.items()], _MAX_NAMES)
        text = (
            f"Whole numbers beyond {_MAX_EXACT:,} were rounded, as features are float32: {some}. "
            "Numbers that are names belong to categorical_columns."
        )
        remarks.append(Remark("rounded", text, {"values": dict(log.rounded)}))
    if log.controls:
        text = f"{counted(log.controls, 'control character')} became spaces: XML has none."
        remarks.append(Remark("controls", text, {"characters": log.controls}))
    return remarks


def sentence_remarks(lengths: Mapping[int, int]) -> list[Remark]:
    """Returns warnings about sentences longer than an example has by default.

    Args:
        lengths: Sentences to train on by their number of words.
    """
    return cut_words(
        lengths,
        SEQUENCE_LENGTH,
        "it may be larger, or long_sentences=chunk continues them in the next example.",
    )


def markup_remarks(words: Mapping[str, int], options: ImportOptions) -> list[Remark]:
    """Returns the warning about a vocabulary with much markup."""
    signs = {word: count for word, count in words.items() if is_markup(word)}
    markup, total = sum(signs.values()), sum(words.values())
    if markup <= _MUCH_MARKUP * total:
        return []
    often = sorted(signs, key=lambda word: (-signs[word], word))[:_MAX_NAMES]
    mend = ""
    if options.format == "stackexchange":
        mend = "; markup=math:word,code:word puts one word in their place"
    return [
        Remark(
            "markup",
            f"{share(markup, total)} of the words of train are signs of markup or formulas "
            f"({' '.join(often)}){mend}.",
            {"words": total, "words_of_markup": markup, "most_frequent": often},
        )
    ]
