"""What an import says of the store that it made, beyond its numbers."""

from collections.abc import Mapping, Sequence

from tff_agnostic.data.remarks import Remark, cut_words, domains_without, share, small_domains
from tff_agnostic.data.sentences import SEQUENCE_LENGTH
from tff_agnostic.importing.records.options import SPLIT_NAMES, ImportOptions
from tff_agnostic.importing.strata import Stratum

# A share of markup among the words that is said.
_MUCH_MARKUP = 0.02
# Signs that prose hardly has.
_MARKUP_SIGNS = frozenset("\\{}^_$`|<>~=")
_LARGE = 0.5
_MAX_NAMES = 5


def is_markup(word: str) -> bool:
    """Returns whether a word is signs of markup or formulas; a special word, as <url>, is none."""
    return not _MARKUP_SIGNS.isdisjoint(word) and not (
        word.startswith("<") and word.endswith(">") and len(word) > 2
    )


def domain_remarks(
    examples: Mapping[str, Mapping[str, int]], wanted: Sequence[str], fewest: int
) -> list[Remark]:
    """Returns what is said of domains that a split lacks, or has little of.

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
    """Returns what is said of domains most of which cannot be divided.

    Args:
        strata: What the splits kept together, by domain.
        options: Of the import.
    """
    names = [name for name, s in strata.items() if s.largest > _LARGE * s.examples]
    if not names or len(options.split) < 2 or options.split_by == "example":
        return []
    some = ", ".join(names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return [
        Remark(
            "large_units",
            f"In {len(names)} of {len(strata)} domains a single {options.split_by} has over half "
            f"of the examples, so that shares cannot be kept: {some}{more}; "
            f"{_smaller_units(options)}",
            {"split_by": options.split_by, "domains": names},
        )
    ]


def _smaller_units(options: ImportOptions) -> str:
    if options.format != "text_folders":
        return "--split_by=example divides every client's examples."
    if options.split_by == "group":
        return "--sentences_per_group cuts files into several groups."
    return "--sentences_per_client cuts files into several clients."


def sentence_remarks(lengths: Mapping[int, int]) -> list[Remark]:
    """Returns what is said of sentences that are longer than an example, unless a user says more.

    Args:
        lengths: Sentences to train on by their number of words.
    """
    return cut_words(
        lengths,
        SEQUENCE_LENGTH,
        "TASK_sequence_length",
        "it may be larger, or --TASK_long_sentences=chunk continues them in the next example.",
        "train",
    )


def markup_remarks(words: Mapping[str, int], options: ImportOptions) -> list[Remark]:
    """Returns what is said of a vocabulary with much markup.

    Args:
        words: The vocabulary, with counts.
        options: Of the import.
    """
    signs = {word: count for word, count in words.items() if is_markup(word)}
    markup, total = sum(signs.values()), sum(words.values())
    if markup <= _MUCH_MARKUP * total:
        return []
    often = sorted(signs, key=lambda word: (-signs[word], word))[:_MAX_NAMES]
    mend = ""
    if options.format == "stackexchange":
        mend = "; --markup=math:word,code:word puts one word in their place"
    return [
        Remark(
            "markup",
            f"{share(markup, total)} of the words of train are signs of markup or formulas "
            f"({' '.join(often)}){mend}.",
            {"words": total, "words_of_markup": markup, "most_frequent": often},
        )
    ]
