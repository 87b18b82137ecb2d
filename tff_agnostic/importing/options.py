"""The options of an import, their choices, and what is done to markup."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Optional

from tff_agnostic import settings
from tff_agnostic.data.data_warnings import FEW_EXAMPLES
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import setting

MB = 10**6
# What may be unpacked from a small input, whatever the ratio.
FREE_MB = 10
SPLIT_NAMES = ("train", "heldout", "test")
TABLES = ("csv", "jsonl", "parquet")
_NAMED_COLUMNS = ("npz", *TABLES)
_MAY_BE_TEXT = ("stackexchange", "text_folders", "plays", "leaf", *TABLES)
SPLIT_BY: Registry[str] = Registry(
    "way to split",
    {
        "client": "a client is in one split",
        "group": "a group, e.g. a film or a thread, is in one split",
        "example": "each client's examples are split",
    },
)
POST_DOMAINS: Registry[str] = Registry(
    "domain of a post",
    {
        "type": "question or answer",
        "site": "the folder's name",
        "tag": "a tag of the question, the first one, or the first that --domain_names names",
    },
)
CASES: Registry[str] = Registry(
    "case", {"keep": "as it is", "lower": "lower case", "upper": "upper case"}
)
PUNCTUATION: Registry[str] = Registry(
    "treatment of punctuation", {"keep": "words of their own", "drop": "left out"}
)
TOKENIZERS: Registry[str] = Registry(
    "tokenizer",
    {
        "spaces": "the text is tokenised: words are what stands between spaces",
        "words": "punctuation is taken apart, except apostrophes and hyphens inside words",
        "letters": "words are what stands between spaces, letters only: know't is knowt",
    },
)
SENTENCES: Registry[str] = Registry(
    "way to find sentences",
    {
        "punctuation": "one ends at . ? ! or an ellipsis that is a word of its own",
        "lines": "every line is one",
        "none": "a text is one, in examples of 1000 words",
    },
)
LABEL_KINDS: Registry[str] = Registry(
    "kind of labels",
    {
        "class": "whole numbers from 0, or names (--class_names)",
        "number": "any numbers; a model of your own (--task=custom) has the loss",
    },
)
UTF_8 = "utf-8"
ENCODINGS: Registry[str] = Registry(
    "encoding",
    {
        UTF_8: "Unicode, as nearly everything writes it today",
        "utf-16": "Unicode in pairs of bytes, which begins with a byte-order mark",
        "cp1252": "Western European, as Excel writes CSV",
        "latin-1": "Western European, ISO 8859-1",
    },
)
# What a flag calls signs that a shell makes hard to give.
DELIMITERS = {"tab": "\t", "semicolon": ";", "comma": ",", "pipe": "|"}
MISSING_VALUES: Registry[str] = Registry(
    "treatment of missing values",
    {
        "fail": "the record is bad",
        "zero": "a number is 0, a category is like an unknown one",
        "mark": "the same, and said: each column of numbers has one more, 1 where it is missing, "
        "and each of categories a category of its own",
    },
)
BAD_RECORDS: Registry[str] = Registry(
    "treatment of bad records",
    {"fail": "the first one ends the import", "skip": "they are left out, and counted by reason"},
)
# What stands for a formula or for code until words are made; no text has these characters, as
# neither XML nor HTML allows them.
MATH_MARK, CODE_MARK = "\x01", "\x02"
SPECIAL_WORDS = {MATH_MARK: "<math>", CODE_MARK: "<code>"}
# (what is found, its mark) -> what becomes of it.
TREATMENTS: Registry[str] = Registry(
    "treatment of markup",
    {
        "drop": "left out",
        "keep": "words as any others",
        "word": "one word in its place, <code> or <math>",
    },
)
# --markup, if not given.
DEFAULT_MARKUP = ("code:drop", "math:word")
# TeX as MathJax finds it. Of single dollars, as in pandoc, the first has no space after it and the
# last none before it and no digit after it, so that amounts of money are none.
_MATH = re.compile(
    r"\$\$.+?\$\$"
    r"|\\\[.+?\\\]"
    r"|\\\(.+?\\\)"
    r"|\\begin\{(\w+\*?)\}.+?\\end\{\1\}"
    r"|(?<![\\$])\$(?=[^\s$])[^$]*?(?<=[^\s\\$])\$(?!\d)",
    re.DOTALL,
)


def _formats_help() -> str:
    from tff_agnostic.importing.importer import FORMATS

    summaries = "; ".join(f"{name}: {one.summary}" for name, one in FORMATS.items())
    return f"Format of the input. One of: {summaries}."


def _formats(*names: str) -> tuple[str, tuple[str, ...]]:
    return ("format", names)


@dataclasses.dataclass(frozen=True)
class ImportOptions:
    """Everything that determines a store, beside the files that it is made from.

    Every field is a flag of the same name; its help text is in the field's metadata.
    """

    format: str = setting("", _formats_help)
    input: tuple[str, ...] = setting((), "Files or folders to read, comma-separated.")
    output: str = setting("", "The store to write, a new file.")
    report: Optional[str] = setting(
        None, "Also write the report as JSON to this file.", is_path=True
    )
    seed: int = setting(0, "Seeds the splits, and dealing to clients.", at_least=0)
    max_records: Optional[int] = setting(
        None, "Stop after that many records, to try flags on a large source. [all]", at_least=1
    )
    processes: Optional[int] = setting(
        None,
        "How many processes make sentences; the store is the same for any number. [one for each "
        "core, up to 4; 1 for inputs below 16 MB]",
        at_least=1,
        only_with=_formats("stackexchange"),
    )
    bad_records: str = setting(
        "fail",
        "What becomes of a record with a label, feature or domain that cannot be.",
        choices=BAD_RECORDS,
    )
    max_record_mb: int = setting(
        64,
        "How many MB a record of the input may have, such as a line, a post or a user of LEAF.",
        at_least=1,
    )
    max_unpacked_mb: int = setting(
        200_000, "How many MB a compressed input may have when unpacked.", at_least=1
    )
    max_unpacked_ratio: int = setting(
        200,
        "How many times its size a compressed input may have when unpacked, beyond the first "
        f"{FREE_MB} MB.",
        at_least=1,
    )
    max_pixels: int = setting(
        1 << 24,
        "How many pixels an image may have, all pictures of an animation together.",
        at_least=1,
        only_with=_formats("parquet", "idx"),
    )
    split: tuple[str, ...] = setting(
        ("train:0.8", "heldout:0.1", "test:0.1"),
        "Shares of the splits. Where the source says what is for testing, these are shares of the "
        "rest, and all of it is for training if they are not given.",
    )
    split_by: str = setting("client", "What is kept together.", choices=SPLIT_BY)
    stratify: bool = setting(
        True,
        "Keep the shares of the splits in each domain; otherwise on average only, but then what is "
        "kept together stays in its split whatever else the input holds.",
    )
    min_per_split: int = setting(
        1,
        "What is kept together, at least so many of each domain in test, and then in heldout, as "
        "far as one is left to train on.",
        at_least=0,
        only_with=("stratify", (True,)),
    )
    min_domain_examples: int = setting(
        FEW_EXAMPLES,
        "The report names domains with fewer examples than these to train on, or to test on.",
        at_least=1,
    )
    vocabulary_size: int = setting(
        10000,
        "K: how many words of the training clients are kept.",
        at_least=1,
        only_with=_formats(*_MAY_BE_TEXT),
    )
    domain_names: tuple[str, ...] = setting(
        (),
        "VALUE:NAME of every domain, or VALUE where it is the name; others are bad records.",
    )
    domain: str = setting(
        "type",
        "What the domain of a post is.",
        choices=POST_DOMAINS,
        only_with=_formats("stackexchange"),
    )
    domain_name: Optional[str] = setting(
        None,
        "Name of the only domain, where the source has none.",
        only_with=_formats("leaf", "idx", "text_folders", "plays", *_NAMED_COLUMNS),
    )
    domains_file: Optional[str] = setting(
        None, "CSV with a line CLIENT,DOMAIN for each client.", only_with=_formats("leaf")
    )
    delimiter: Optional[str] = setting(
        None,
        f"What stands between the columns of CSV: one sign, or {', '.join(DELIMITERS)}. [a comma; "
        "in .tsv a tab]",
        only_with=_formats("csv"),
    )
    encoding: str = setting(
        UTF_8,
        "How the text of a file is written.",
        choices=ENCODINGS,
        only_with=_formats("csv", "jsonl"),
    )
    client_column: Optional[str] = setting(
        None, "Column with the client's id.", only_with=_formats(*_NAMED_COLUMNS)
    )
    domain_column: Optional[str] = setting(
        None, "Column with the domain.", only_with=_formats(*_NAMED_COLUMNS)
    )
    group_column: Optional[str] = setting(
        None, "Column with what --split_by=group keeps together.", only_with=_formats(*TABLES)
    )
    label_column: Optional[str] = setting(
        None, "Column with the label. [npz: y]", only_with=_formats(*_NAMED_COLUMNS)
    )
    label_kind: str = setting(
        "class",
        "What labels are.",
        choices=LABEL_KINDS,
        only_with=_formats("leaf", *_NAMED_COLUMNS),
    )
    split_column: Optional[str] = setting(
        None,
        f"Column that says what an example is for: {', '.join(SPLIT_NAMES)}.",
        only_with=_formats(*TABLES),
    )
    feature_columns: tuple[str, ...] = setting(
        (),
        "Columns with numbers, comma-separated; of several inputs NAME:COLUMN,...;NAME:COLUMN,... "
        "(not npz). [npz: x]",
        only_with=_formats(*_NAMED_COLUMNS),
    )
    categorical_columns: tuple[str, ...] = setting(
        (),
        "Columns with names of categories, comma-separated; those of training clients are known.",
        only_with=_formats(*TABLES),
    )
    max_categories: int = setting(
        1000,
        "How many categories of a column are known, the most frequent ones.",
        at_least=1,
        only_with=_formats(*TABLES),
    )
    missing_values: str = setting(
        "fail",
        "What becomes of an empty cell among features.",
        choices=MISSING_VALUES,
        only_with=_formats(*TABLES),
    )
    missing_marks: tuple[str, ...] = setting(
        (),
        "What stands in cells without a value, beside nothing, e.g. ?,NA.",
        only_with=_formats(*TABLES),
    )
    standardize: bool = setting(
        False,
        "Bring each number of --feature_columns to mean 0 and deviation 1 of the training clients; "
        "a missing one is then the mean. The store remembers both, and so does a saved model.",
        only_with=_formats(*TABLES),
    )
    image_columns: tuple[str, ...] = setting(
        (),
        "Columns with images: PNG, JPEG, GIF or BMP files, or lists of pixels from 0 to 255.",
        only_with=_formats("parquet"),
    )
    text_column: Optional[str] = setting(
        None,
        "Column with text; LEAF: position of the text in a list of strings.",
        only_with=_formats("leaf", *TABLES),
    )
    feature_name: Optional[str] = setting(
        None,
        "Name of the features in the store. [pixels for images of bytes, otherwise x]",
        only_with=_formats("leaf", *_NAMED_COLUMNS),
    )
    feature_shape: tuple[int, ...] = setting(
        (),
        "Shape of an example's features, if not a vector, e.g. 28,28. In a table it needs exactly "
        "one input in --feature_columns.",
        only_with=_formats("leaf", *TABLES),
    )
    class_names: tuple[str, ...] = setting(
        (),
        "Names of the classes in the order of their numbers; labels may be either. Without it "
        "labels are numbers.",
        only_with=_formats("leaf", "idx", *_NAMED_COLUMNS),
    )
    classes: tuple[int, ...] = setting(
        (),
        "Labels to keep, which become 0, 1, ... in this order. [all]",
        only_with=_formats("idx"),
    )
    num_clients: int = setting(
        100, "Clients that the examples are dealt to.", at_least=1, only_with=_formats("idx")
    )
    sentences: str = setting(
        "punctuation",
        "Where sentences end.",
        choices=SENTENCES,
        only_with=_formats("text_folders"),
    )
    sentences_per_client: int = setting(
        0,
        "Sentences of a passage that is a client; 0: the whole file is one.",
        at_least=0,
        only_with=_formats("text_folders"),
    )
    sentences_per_group: int = setting(
        0,
        "Sentences of a passage that --split_by=group keeps together, a multiple of "
        "--sentences_per_client; 0: the whole file.",
        at_least=0,
        only_with=_formats("text_folders"),
    )
    markup: tuple[str, ...] = setting(
        DEFAULT_MARKUP,
        "What becomes of code and of formulas in TeX: drop, keep, or word for one word in their "
        "place, <code> or <math>; a name for both or NAME:TREATMENT of each.",
        only_with=_formats("stackexchange"),
    )
    tokenizer: Optional[str] = setting(
        None,
        "How text becomes words. [text_folders: spaces, otherwise words]",
        choices=TOKENIZERS,
        only_with=_formats("text_folders", "plays", "leaf", *TABLES),
    )
    case: str = setting(
        "keep",
        "Case of words.",
        choices=CASES,
        only_with=_formats("text_folders", "plays", "leaf", *TABLES),
    )
    punctuation: str = setting(
        "keep",
        "Words without a letter or digit.",
        choices=PUNCTUATION,
        only_with=_formats("text_folders", "plays", "leaf", *TABLES),
    )

    @property
    def max_record_bytes(self) -> int:
        """How many bytes a record may have."""
        return self.max_record_mb * MB

    @property
    def sign_between(self) -> str:
        """What stands between columns, if --delimiter says it; otherwise empty."""
        return DELIMITERS.get(self.delimiter or "", self.delimiter or "")

    @property
    def are_classes(self) -> bool:
        """Whether labels are classes."""
        return self.label_kind == "class"

    def __post_init__(self) -> None:
        """Raises a `UserError` that names the flag if a value is out of range."""
        settings.check_values(self)
        if self.delimiter is not None and (
            len(self.sign_between) != 1 or self.sign_between in '"\r\n'
        ):
            raise UserError(
                f"--delimiter: expected one sign, or {', '.join(DELIMITERS)}, found "
                f"{self.delimiter!r}"
            )


@dataclasses.dataclass(frozen=True)
class Markup:
    """What becomes of markup.

    Attributes:
        code: Of code: a name of `TREATMENTS`.
        math: Of formulas.
    """

    code: str
    math: str


def parse_markup(texts: Sequence[str]) -> Markup:
    """Returns what --markup says: TREATMENT of both, or code:TREATMENT,math:TREATMENT.

    Args:
        texts: The parts of the flag; what they do not name has its default.
    """
    given: dict[str, str] = {}
    for text in texts:
        kind, colon, treatment = text.partition(":")
        kinds = [kind] if colon else ["code", "math"]
        treatment = treatment if colon else kind
        if treatment not in TREATMENTS or not {*kinds} <= {"code", "math"} - {*given}:
            raise UserError(
                f"--markup: expected {', '.join(TREATMENTS)}, or one each as "
                f"code:drop,math:word, found {','.join(texts)!r}"
            )
        given.update(dict.fromkeys(kinds, treatment))
    default = dict(text.split(":") for text in DEFAULT_MARKUP)
    return Markup(**{**default, **given})


def treat_math(text: str, treatment: str) -> str:
    """Returns a text with its formulas left out, as they are, or as a mark each."""
    if treatment == "keep" or ("$" not in text and "\\" not in text):
        return text
    mark = f" {MATH_MARK} " if treatment == "word" else " "
    return _MATH.sub(mark, text)
