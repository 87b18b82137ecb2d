"""Warnings about data: about a store after its import, and about the clients of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_agnostic.base.errors import agreeing, some_of

# With fewer test examples, the standard error of an accuracy may exceed five percentage points.
FEW_EXAMPLES = 100
# Kinds of warnings about training. They come before all other warnings in reports.
GIVEN_UP, ABSURD, UNMOVED = "given_up", "absurd_losses", "unmoved_lambda"
TRAINING_WARNINGS = (GIVEN_UP, ABSURD, UNMOVED)
# Maximum number of domain names in a sentence.
_MAX_NAMES = 5


@dataclasses.dataclass(frozen=True)
class Remark:
    """A warning about data or training.

    Attributes:
        kind: Identifier for the kind of warning.
        text: Sentence for users, which names the option that avoids the problem.
        figures: Numbers and names in the sentence, as JSON values.
    """

    kind: str
    text: str
    figures: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the warning as JSON values."""
        return {"kind": self.kind, "text": self.text, **self.figures}


def cut_words(lengths: Mapping[int, int], sequence_length: int, advice: str) -> list[Remark]:
    """Returns a warning if sentences exceed the sequence length, otherwise an empty list.

    Args:
        lengths: Number of training sentences by their number of words.
        sequence_length: Number of words of a sentence to predict, T; further words are cut.
        advice: Advice on how to keep the cut words, which ends the warning.
    """
    sentences = sum(lengths.values())
    words = sum(n * count for n, count in lengths.items())
    long = sum(count for n, count in lengths.items() if n > sequence_length)
    cut = sum((n - sequence_length) * count for n, count in lengths.items() if n > sequence_length)
    if not cut:
        return []
    return [
        Remark(
            "words_cut",
            f"{share(cut, words)} of the words of train ({cut} of {words}) are cut off: "
            f"{share(long, sentences)} of the sentences have more than "
            f"sequence_length={sequence_length} words; {advice}",
            {
                "words": words,
                "words_cut": cut,
                "sentences": sentences,
                "sentences_cut": long,
                "sequence_length": sequence_length,
            },
        )
    ]


def domains_without(examples: Mapping[str, int], split: str) -> list[Remark]:
    """Returns a warning if domains have no examples in a split, otherwise an empty list.

    Args:
        examples: Number of examples of each domain in the split.
    """
    names = [name for name, n in examples.items() if n == 0]
    if not names:
        return []
    means = {
        "train": "nothing is learned from them.",
        "test": "they cannot be evaluated.",
        "heldout": "tuning is blind to them.",
    }
    return [
        Remark(
            "domains_without_examples",
            f"{_counted_items(names, examples)} no client in {split}: "
            f"{some_of(names, _MAX_NAMES)}; {means.get(split, 'they cannot be evaluated.')}",
            {"split": split, "domains": names},
        )
    ]


def small_domains(examples: Mapping[str, int], split: str, fewest: int) -> list[Remark]:
    """Returns a warning if domains have few examples in a split, otherwise an empty list.

    Args:
        examples: Number of examples of each domain in the split.
        fewest: Number of examples below which a domain is small.
    """
    names = [name for name, n in examples.items() if 0 < n < fewest]
    if not names:
        return []
    means = {
        "train": "their weights are learned from few examples.",
        "test": 'the "worst" domain may be one of them by chance.',
    }
    listed = [f"{name} ({examples[name]})" for name in sorted(names, key=lambda n: examples[n])]
    return [
        Remark(
            "small_domains",
            f"{_counted_items(names, examples)} fewer than {fewest} examples in {split}: "
            f"{some_of(listed, _MAX_NAMES)}; "
            f"{means.get(split, 'their figures are uncertain.')}",
            {
                "split": split,
                "fewest": fewest,
                "domains": {name: examples[name] for name in names},
            },
        )
    ]


def _counted_items(names: Sequence[str], examples: Mapping[str, int]) -> str:
    return f"{len(names)} of {len(examples)} domains {agreeing(len(names), 'has', 'have')}"


def share(part: int, whole: int) -> str:
    """Formats `part / whole` in percent."""
    return f"{part / max(1, whole):.1%}"
