"""The report of an import: counts, sizes, skewness, and warnings about the store."""

from __future__ import annotations

import dataclasses
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
from tff_agnostic.data.store_format import TRAIN
from tff_agnostic.importing import contents
from tff_agnostic.importing.columns import MAX_EXACT
from tff_agnostic.importing.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.importing.splits import Stratum, parse_shares
from tff_agnostic.importing.vocabulary import CategorySummary, VocabularySummary

# Warn if markup is more than this fraction of the words.
_MUCH_MARKUP = 0.02
# Characters of markup and formulas, which are rare in prose.
_MARKUP_SIGNS = frozenset("\\{}^_$`|<>~=")
# Warn if one unit has more than this fraction of a domain's examples.
_LARGE = 0.5
_MAX_NAMES = 5


@dataclasses.dataclass(frozen=True)
class Count:
    """The numbers of clients and of their examples."""

    clients: int
    examples: int


@dataclasses.dataclass(frozen=True)
class SplitSummary(Count):
    """The numbers of clients and examples in one split.

    Attributes:
        domains: Numbers of clients and examples, by domain; a client with several domains counts in
            each.
        clients_with_several_domains: Number of clients with examples of more than one domain.
    """

    domains: Mapping[str, Count]
    clients_with_several_domains: int


@dataclasses.dataclass(frozen=True)
class Skewness:
    """The skewness s(Lambda || m) (Mohri et al. 2019, eq. 4), where Lambda is the full simplex.

    Attributes:
        value: m / m_k, with m examples in total and m_k in the rarest domain k; p if all p domains
            have equal size.
        rarest: Name of the rarest domain.
        num_examples: Number of examples of the rarest domain, m_k.
        num_domains: Number of domains, p.
    """

    value: float
    rarest: str
    num_examples: int
    num_domains: int

    def meaning(self) -> str:
        """Explains the skewness in sentences for the terminal."""
        if self.num_domains == 1:
            return f"There is one domain, {self.rarest}: nothing to weigh against one another."
        # Name m_k, as the bound of theorem 1 contains the root of s / m, and s / m = 1 / m_k.
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
        count: Number of items.
        total: Sum of the sizes.
        median: 50th percentile of the sizes.
        most: 90th percentile of the sizes.
        nearly_all: 99th percentile of the sizes.
        largest: Largest size.
    """

    count: int
    total: int
    median: int
    most: int
    nearly_all: int
    largest: int

    @classmethod
    def from_counts(cls, counts: Mapping[int, int]) -> Sizes:
        """Computes the distribution from the number of items of each size, at least one item."""
        sizes = np.array(sorted(counts), np.int64)
        numbers = np.array([counts[size] for size in sizes.tolist()], np.int64)
        up_to = np.cumsum(numbers)
        places = np.searchsorted(up_to, np.array([0.5, 0.9, 0.99]) * up_to[-1] - 1e-9)
        median, most, nearly_all = sizes[places].tolist()
        total = int(sizes @ numbers)
        return cls(int(up_to[-1]), total, median, most, nearly_all, int(sizes[-1]))

    def text(self, things: str, parts: str) -> str:
        """Describes the sizes in a line; `things` names the items, `parts` the unit of sizes."""
        return (
            f"{self.count} {things} have {self.total} {parts}: half of them at most {self.median}, "
            f"nine in ten {self.most}, 99% {self.nearly_all}, the largest {self.largest}."
        )


@dataclasses.dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        store: Path of the store.
        records: Number of records in the source.
        splits: Summary of each split, by name.
        skipped: Number of skipped records, by reason.
        clients_without_examples: Number of clients whose records were all skipped.
        skewness: Skewness of the training split.
        vocabulary: Summary of the vocabulary; None unless the store has text.
        categories: Summary of each categorical column, by name.
        missing: Number of examples without a value, by column.
        client_sizes: Distribution of the examples per training client.
        sentence_lengths: Distribution of the words per training sentence; None without text.
        classes: Number of examples by split, domain and class; None without classes.
        class_shares: Fraction of each class in each split; None without classes.
        copies: Numbers of duplicates by split; see `contents.copy_counts`.
        remarks: Warnings about training on the store.
    """

    store: Path
    format: str
    records: int
    splits: Mapping[str, SplitSummary]
    skipped: Mapping[str, int]
    clients_without_examples: int
    skewness: Skewness
    vocabulary: Optional[VocabularySummary]
    categories: Mapping[str, CategorySummary]
    missing: Mapping[str, int]
    client_sizes: Sizes
    sentence_lengths: Optional[Sizes]
    classes: Optional[Mapping[str, Mapping[str, Mapping[str, int]]]]
    class_shares: Optional[Mapping[str, Mapping[str, float]]]
    copies: Optional[Mapping[str, Mapping[str, int]]]
    remarks: Sequence[Remark]

    def text(self) -> str:
        """Returns the report as tables and sentences for the terminal."""
        return "\n\n".join(self._parts())

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        remarks = [remark.to_json() for remark in self.remarks]
        return {**dataclasses.asdict(self), "store": str(self.store), "remarks": remarks}

    def notes(self) -> dict[str, Any]:
        """Returns the facts that a store keeps for the reports of its runs, as JSON values."""
        remarks = [remark.to_json() for remark in self.remarks]
        return {"class_shares": self.class_shares, "remarks": remarks}

    def _parts(self) -> Iterator[str]:
        yield self._counts_table()
        if len({domain for split in self.splits.values() for domain in split.domains}) > 1:
            yield "\n".join(
                f"{split.clients_with_several_domains} of the "
                f"{counted(split.clients, 'client')} of {name} "
                f"{agreeing(split.clients_with_several_domains, 'has', 'have')} examples of more "
                "than one domain."
                for name, split in self.splits.items()
            )
        if self.skipped:
            skipped = tabulate(self.skipped.items(), tablefmt="plain")
            yield f"Left out, of {counted(self.records, 'record')}:\n{skipped}"
        if self.clients_without_examples:
            clients = counted(self.clients_without_examples, "client")
            yield f"Left out, without a kept example: {clients}"
        if self.vocabulary is not None:
            yield self.vocabulary.text()
        if self.categories:
            lines = [summary.text(column) for column, summary in self.categories.items()]
            yield "Categories of the training clients:\n" + "\n".join(lines)
        if self.missing:
            missing = tabulate(self.missing.items(), tablefmt="plain")
            yield f"Examples without a value, by column:\n{missing}"
        sizes = [self.client_sizes.text("clients of train", "examples")]
        if self.sentence_lengths is not None:
            sizes.append(self.sentence_lengths.text("sentences of train", "words"))
        yield "\n".join(sizes)
        yield self.skewness.meaning()
        if self.remarks:
            yield "\n".join(f"Note: {remark.text}" for remark in self.remarks)

    def _counts_table(self) -> str:
        by_domain = Counter[str]()
        for split in self.splits.values():
            by_domain.update({domain: n.examples for domain, n in split.domains.items()})
        rows: list[list[Any]] = []
        for name, split in self.splits.items():
            for domain, n in split.domains.items():
                shares = [n.examples / split.examples, n.examples / by_domain[domain]]
                rows.append([name, domain, n.clients, n.examples, *(f"{s:.1%}" for s in shares)])
            whole = f"{split.examples / by_domain.total():.1%}"
            rows.append([name, "all", split.clients, split.examples, "", whole])
        headers = ["split", "domain", "clients", "examples", "of the split", "of the domain"]
        return tabulate(rows, headers=headers, colalign=("left", "left", *["right"] * 4))


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
        path: Final path of the store, which is still in a scratch folder.
        log: Log of the format's reader.
        vocabulary: Summary of the vocabulary; None unless the store has text.
        categories: Summary of each categorical column, by name.
        strata: Stratum of each domain; see `splits.unit_strata`.
    """
    names = sorted(store.splits(), key=lambda name: (name != TRAIN, name))
    splits = {name: _split_summary(store, name) for name in names}
    lengths = store.sentence_lengths(TRAIN)
    counts, copies = contents.class_counts(store), contents.copy_counts(store)
    description = store.description
    shares = contents.class_shares(counts, description) if counts else None
    sizes = {name: split.examples for name, split in splits.items()}
    # The option names the splits to expect only if this import made the splits.
    wanted = list(parse_shares(options.split)) if strata else []
    remarks = [
        *domain_remarks(splits, wanted, options.min_domain_examples),
        *large_units(strata, options),
        *contents.large_clients(store),
        *(contents.class_remarks(counts, description) if counts else ()),
        *(contents.share_remarks(shares, sizes) if shares else ()),
        *contents.number_remarks(description),
        *(contents.copy_remarks(copies) if copies else ()),
        *reading_remarks(log),
        *cut_words(
            lengths,
            SEQUENCE_LENGTH,
            "it may be larger, or long_sentences=chunk continues them in the next example.",
        ),
        *markup_remarks(dict(store.content.vocabulary), options),
    ]
    return ImportReport(
        store=path,
        format=options.format,
        records=log.num_records,
        splits=splits,
        skipped=dict(log.skipped.most_common()),
        clients_without_examples=len(log.skipped_clients.difference(*store.examples.rows.values())),
        skewness=skewness({d: n.examples for d, n in splits[TRAIN].domains.items()}),
        vocabulary=vocabulary,
        categories=categories,
        missing=dict(log.missing.most_common()),
        client_sizes=Sizes.from_counts(Counter(store.client_counts(TRAIN).values())),
        sentence_lengths=Sizes.from_counts(lengths) if lengths else None,
        classes=counts,
        class_shares=shares,
        copies=copies,
        remarks=remarks,
    )


def skewness(examples: Mapping[str, int]) -> Skewness:
    """Returns the skewness of domains with the given numbers of examples, all positive."""
    rarest = min(examples, key=lambda domain: (examples[domain], domain))
    value = sum(examples.values()) / examples[rarest]
    return Skewness(value, rarest, examples[rarest], len(examples))


def _split_summary(store: ArrowStore, split: str) -> SplitSummary:
    table = store.domain_table(split)
    clients, examples = (table > 0).sum(axis=0).tolist(), table.sum(axis=0).tolist()
    counts = zip(store.description.domains, clients, examples)
    return SplitSummary(
        clients=len(table),
        examples=int(table.sum()),
        domains={name: Count(*n) for name, *n in sorted(counts) if n[0]},
        clients_with_several_domains=int(((table > 0).sum(axis=1) > 1).sum()),
    )


def domain_remarks(
    splits: Mapping[str, SplitSummary], wanted: Sequence[str], fewest: int
) -> Iterator[Remark]:
    """Yields warnings about domains with no or few examples in a split.

    Args:
        splits: Summary of each split, by name.
        wanted: Names of the splits that should exist.
        fewest: Number of examples below which a domain is small.
    """
    domains = sorted({name for split in splits.values() for name in split.domains})
    for name in SPLIT_NAMES:
        if name in wanted or name in splits:
            examples = splits[name].domains if name in splits else {}
            counts = {d: examples[d].examples if d in examples else 0 for d in domains}
            yield from domains_without(counts, name)
            if name != "heldout":
                yield from small_domains(counts, name, fewest)


def large_units(strata: Mapping[str, Stratum], options: ImportOptions) -> Iterator[Remark]:
    """Yields a warning about domains with most examples in one unit, as splits keep units whole.

    Args:
        strata: Stratum of each domain; see `splits.unit_strata`.
    """
    names = [name for name, s in strata.items() if s.largest > _LARGE * s.examples]
    if not names or len(options.split) < 2 or options.split_by == "example":
        return
    fix = "split_by=example divides every client's examples."
    if options.format == "text_folders":
        unit = "group" if options.split_by == "group" else "client"
        fix = f"sentences_per_{unit}=N cuts files into several {unit}s."
    yield Remark(
        "large_units",
        f"In {len(names)} of {len(strata)} domains a single {options.split_by} has over half of "
        f"the examples, so that shares cannot be kept: {some_of(names, _MAX_NAMES)}; {fix}",
        {"split_by": options.split_by, "domains": names},
    )


def reading_remarks(log: ReadLog) -> Iterator[Remark]:
    """Yields notes about clients of one row, and about changed names, numbers and characters."""
    if log.rows_are_clients:
        text = "Each row is a client, as client_column=row says: no client has several examples."
        yield Remark("rows_are_clients", text, {})
    for column, spellings in log.renamed.items():
        spelling, name = next(iter(spellings.items()))
        yield Remark(
            "names",
            f"{counted(len(spellings), 'spelling')} of names in {column} "
            f"{agreeing(len(spellings), 'was', 'were')} changed, such as "
            f"{spelling!r} to {name!r}: blanks at the ends and forms of Unicode make no other "
            "client or domain, and 17.0 is 17.",
            {"column": column, "spellings": dict(spellings)},
        )
    if log.rounded:
        some = some_of([f"{column} ({n})" for column, n in log.rounded.items()], _MAX_NAMES)
        yield Remark(
            "rounded",
            f"Whole numbers beyond {MAX_EXACT:,} were rounded, as features are float32: {some}. "
            "Numbers that are names belong to categorical_columns.",
            {"values": dict(log.rounded)},
        )
    if log.controls:
        text = f"{counted(log.controls, 'control character')} became spaces: XML has none."
        yield Remark("controls", text, {"characters": log.controls})


def markup_remarks(words: Mapping[str, int], options: ImportOptions) -> Iterator[Remark]:
    """Yields a warning about a vocabulary with much markup."""
    signs = {word: count for word, count in words.items() if _is_markup(word)}
    markup, total = sum(signs.values()), sum(words.values())
    if markup <= _MUCH_MARKUP * total:
        return
    often = sorted(signs, key=lambda word: (-signs[word], word))[:_MAX_NAMES]
    fix = ""
    if options.format == "stackexchange":
        fix = "; markup=math:word,code:word puts one word in their place"
    yield Remark(
        "markup",
        f"{share(markup, total)} of the words of train are signs of markup or formulas "
        f"({' '.join(often)}){fix}.",
        {"words": total, "words_of_markup": markup, "most_frequent": often},
    )


def _is_markup(word: str) -> bool:
    """Whether a word has signs of markup or formulas, and is not a special word such as <url>."""
    is_special = word.startswith("<") and word.endswith(">") and len(word) > 2
    return not _MARKUP_SIGNS.isdisjoint(word) and not is_special
