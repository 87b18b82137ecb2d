"""What an import made: counts per split and domain, overlap, what was left out, skewness."""

import contextlib
import dataclasses
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tabulate import tabulate

from tff_agnostic.data.remarks import Remark
from tff_agnostic.importing.categories import CategorySummary
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog
from tff_agnostic.importing.sizes import Sizes
from tff_agnostic.importing.skewness import Skewness, skewness
from tff_agnostic.importing.split_summary import SplitSummary, summary_of_split
from tff_agnostic.importing.splits import TRAIN, parse_shares
from tff_agnostic.importing.store_remarks import (
    domain_remarks,
    large_units,
    markup_remarks,
    sentence_remarks,
)
from tff_agnostic.importing.strata import Stratum
from tff_agnostic.importing.vocabulary import VocabularySummary

_ALIGNED = ("left", "left", "right", "right", "right", "right")
_CLIENT_SIZES = (
    "SELECT num_examples, COUNT(*) FROM client_metadata WHERE split_name = ? GROUP BY num_examples"
)
_SENTENCE_LENGTHS = (
    "SELECT words, SUM(num_sentences) FROM sentence_lengths WHERE split_name = ? GROUP BY words"
)
# A larger matrix cannot be read any more; the JSON report has it all.
_MAX_MATRIX = 12


@dataclasses.dataclass(frozen=True)
class ImportReport:
    """What an import made.

    Attributes:
        store: The file.
        format: Of the source.
        num_records: Records that were read.
        splits: What each split holds.
        skipped: Records that were left out, by reason.
        clients_without_examples: Clients of which nothing was kept.
        skewness: Of the training split.
        vocabulary: Of a text store.
        categories: What became of the values of each categorical column.
        missing: How many examples lack the value of a column, by column.
        client_sizes: Examples of the training clients.
        sentence_lengths: Words of the sentences to train on, in a text store.
        remarks: What to know before training on it.
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
    remarks: Sequence[Remark]

    def text(self) -> str:
        """Returns tables and sentences for people."""
        parts = [self._counts_table()]
        if len(self._domains()) > 1:
            parts.append(self._overlap_table())
        left_out = [[reason, count] for reason, count in self.skipped.items()]
        if self.clients_without_examples:
            left_out.append(["clients of which nothing was kept", self.clients_without_examples])
        if left_out:
            parts.append(
                f"Left out, of {self.num_records} records:\n" + tabulate(left_out, tablefmt="plain")
            )
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
            "remarks": [remark.to_json() for remark in self.remarks],
        }

    def _about_columns(self) -> Iterator[str]:
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
                f"{several} of the {split.total.clients} clients of {name} have examples of more "
                "than one domain."
            )
        train = self.splits[TRAIN]
        if len(domains) > _MAX_MATRIX or not train.shared:
            return "\n".join(lines)
        rows = [[a, *(train.clients_with(a, b) for b in domains)] for a in domains]
        title = f"\nClients of {TRAIN} with examples of both domains:\n"
        return "\n".join(lines) + "\n" + title + tabulate(rows, headers=["", *domains])


def summarise(
    store: Path,
    options: ImportOptions,
    log: ReadLog,
    vocabulary: Optional[VocabularySummary],
    categories: Mapping[str, CategorySummary],
    strata: Mapping[str, Stratum],
) -> ImportReport:
    """Returns the report of a finished store.

    Args:
        store: The store.
        options: Of the import.
        log: What the reader told.
        vocabulary: What became of the words, in a text store.
        categories: What became of the values of each categorical column.
        strata: What the splits kept together, by domain.
    """
    with contextlib.closing(
        sqlite3.connect(store.absolute().as_uri() + "?mode=ro", uri=True)
    ) as db:
        names = [row[0] for row in db.execute("SELECT DISTINCT split_name FROM client_metadata")]
        ordered = sorted(names, key=lambda name: (name != TRAIN, name))
        splits = {name: summary_of_split(db, name) for name in ordered}
        sizes = dict(db.execute(_CLIENT_SIZES, [TRAIN]))
        lengths = dict(db.execute(_SENTENCE_LENGTHS, [TRAIN]))
        words = dict(db.execute("SELECT word, count FROM vocabulary"))
    examples = {
        name: {domain: n.examples for domain, n in split.domains.items()}
        for name, split in splits.items()
    }
    # Only what is divided here has shares to keep.
    wanted = list(parse_shares(options.split)) if strata else []
    remarks = [
        *domain_remarks(examples, wanted, options.min_domain_examples),
        *large_units(strata, options),
        *sentence_remarks(lengths),
        *markup_remarks(words, options),
    ]
    return ImportReport(
        store=store,
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
        remarks=remarks,
    )
