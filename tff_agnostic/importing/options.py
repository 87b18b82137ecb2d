"""The options of an import, their choices, and the treatment of markup."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Optional

from tff_agnostic.base.options import OptionError, Options, Within
from tff_agnostic.data.data_warnings import FEW_EXAMPLES

MB = 10**6
# Any input may decompress to this many MB, whatever the ratio.
FREE_MB = 10
SPLIT_NAMES = ("train", "heldout", "test")
TABLES = ("csv", "jsonl", "parquet")
_NAMED_COLUMNS = ("npz", *TABLES)
UTF_8 = "utf-8"
# Names of delimiters that are hard to write in a shell.
DELIMITERS = {"tab": "\t", "semicolon": ";", "comma": ",", "pipe": "|"}
# Placeholders of formulas and code until the text is split into words. Input texts do not have
# these characters, as neither XML nor HTML allows them.
MATH_MARK, CODE_MARK = "\x01", "\x02"
SPECIAL_WORDS = {MATH_MARK: "<math>", CODE_MARK: "<code>"}
# Treatments of markup; "word" replaces it by one of `SPECIAL_WORDS`.
TREATMENTS = ("drop", "keep", "word")
# Default of --markup.
DEFAULT_MARKUP = ("code:drop", "math:word")
# TeX as in MathJax. As in pandoc, no space follows an opening dollar, no space precedes a closing
# dollar, and no digit follows it, so that amounts of money are not formulas.
_MATH = re.compile(
    r"\$\$.+?\$\$"
    r"|\\\[.+?\\\]"
    r"|\\\(.+?\\\)"
    r"|\\begin\{(\w+\*?)\}.+?\\end\{\1\}"
    r"|(?<![\\$])\$(?=[^\s$])[^$]*?(?<=[^\s\\$])\$(?!\d)",
    re.DOTALL,
)

# For some formats, the options that apply only to them.
_OPTIONS_BY_FORMATS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("stackexchange",): ("processes", "domain", "markup"),
    ("text_folders",): ("sentences", "sentences_per_client", "sentences_per_group"),
    ("leaf",): ("domains_file",),
    ("csv",): ("delimiter", "decimal"),
    ("parquet",): ("image_columns",),
    ("idx",): ("classes", "num_clients"),
    ("parquet", "idx"): ("max_pixels",),
    ("csv", "jsonl"): ("encoding", "encoding_errors"),
    TABLES: (
        *("group_column", "split_column", "categorical_columns", "max_categories"),
        *("missing_values", "standardize"),
    ),
    _NAMED_COLUMNS: (
        *("client_column", "domain_column", "label_column", "feature_columns"),
        "missing_marks",
    ),
    ("leaf", *TABLES): ("text_column", "feature_shape"),
    ("leaf", *_NAMED_COLUMNS): ("label_kind", "feature_name"),
    ("leaf", "idx", *_NAMED_COLUMNS): ("class_names",),
    ("leaf", "idx", "text_folders", "plays", *_NAMED_COLUMNS): ("domain_name",),
    ("text_folders", "plays", "leaf", *TABLES): ("tokenizer", "case", "punctuation"),
    ("stackexchange", "text_folders", "plays", "leaf", *TABLES): ("vocabulary_size",),
}


@dataclasses.dataclass(frozen=True)
class ImportOptions(Options):
    """Everything that determines a store, except the files that it is made from.

    Attributes:
        format: Format of the input. One of: stackexchange: Posts.xml of a Stack Exchange or Stack
            Overflow dump; domains are question and answer, sites or tags; text_folders: a folder
            for each domain, with texts as .txt files, or such files of one domain; clients are
            files or passages; plays: plays as .txt files, speeches under lines SPEAKER: with blank
            lines between; clients are speakers; leaf: LEAF's JSON; csv: CSV with a header line;
            jsonl: JSON Lines; parquet: Parquet; npz: NumPy .npz with arrays of features, labels,
            clients and domains; idx: IDX files of MNIST, Fashion-MNIST or EMNIST; domains are the
            classes.
        input: Files or folders to read, comma-separated.
        output: The store to write, a new folder.
        report: Also write the report as JSON to this file.
        seed: Seed of the splits, and of dealing examples to clients.
        max_records: Maximum number of records to read, to try flags on a large source. [all]
        processes: Number of processes that split texts into sentences; it does not change the
            store. [one for each core, up to 4; 1 for inputs below 16 MB] Only with format
            stackexchange.
        bad_records: Treatment of a record with an invalid label, feature or domain.
        max_record_mb: Maximum MB of a record of the input, such as a line, a post or a user of
            LEAF.
        max_unpacked_mb: Maximum MB of a compressed input after unpacking.
        max_unpacked_ratio: Maximum ratio of an input's unpacked to its compressed size, if it has
            more than 10 MB after unpacking.
        max_pixels: Maximum number of pixels of an image, or of all frames of an animation. Only
            with format parquet or idx.
        split: Shares of the splits. If the source itself names test examples, these are shares of
            the other examples, which are all for training if the flag is not given.
        split_by: Unit that stays in one split.
        stratify: Keep the shares of the splits in each domain. Otherwise the shares only hold on
            average, but the split of a unit does not depend on the rest of the input.
        min_per_split: Minimum number of units of each domain in test and in heldout, unless no unit
            would remain for train. Only with stratify true.
        min_domain_examples: The report names domains with fewer training or test examples than this
            number.
        vocabulary_size: Number of words to keep, K: the most frequent words of the training
            clients. Only with format stackexchange, text_folders, plays, leaf, csv, jsonl or
            parquet.
        domain_names: VALUE:NAME for every domain, or VALUE if it is also the name; records of other
            domains are bad.
        domain: Domain of a post. Only with format stackexchange.
        domain_name: Name of the only domain, if the source does not name domains. Only with format
            leaf, idx, text_folders, plays, npz, csv, jsonl or parquet.
        domains_file: CSV with a line CLIENT,DOMAIN for each client. Only with format leaf.
        delimiter: Character between the columns of CSV: one character, or tab, semicolon, comma,
            pipe. [a comma; in .tsv a tab] Only with format csv.
        encoding: Encoding of the text in files. Only with format csv or jsonl.
        encoding_errors: Treatment of bytes that are invalid in the encoding: strict ends the import
            at the first such byte; replace writes a replacement character. Only with format csv or
            jsonl.
        decimal: Sign before the decimals of a number: point or comma. Only with format csv.
        client_column: Column with the client's id; row makes each row a client, if no column has
            this name. Only with format npz, csv, jsonl or parquet.
        domain_column: Column with the domain. Only with format npz, csv, jsonl or parquet.
        group_column: Column with the groups that --split_by=group keeps in one split. Only with
            format csv, jsonl or parquet.
        label_column: Column with the label. [npz: y] Only with format npz, csv, jsonl or parquet.
        label_kind: Kind of labels. Only with format leaf, npz, csv, jsonl or parquet.
        split_column: Column with the split of each example: train, heldout or test. Only with
            format csv, jsonl or parquet.
        feature_columns: Columns with numbers, comma-separated; for several inputs
            NAME:COLUMN,...;NAME:COLUMN,... (not npz). [npz: x] Only with format npz, csv, jsonl or
            parquet.
        categorical_columns: Columns with names of categories, comma-separated; the categories of
            training clients are known. Only with format csv, jsonl or parquet.
        max_categories: Maximum number of known categories in a column; the most frequent are kept.
            Only with format csv, jsonl or parquet.
        missing_values: Treatment of missing values in features. Only with format csv, jsonl or
            parquet.
        missing_marks: Texts that represent a missing value in any column, e.g. ?,NA, in addition to
            the empty text and nan. Only with format npz, csv, jsonl or parquet.
        standardize: Scale each number of --feature_columns to mean 0 and standard deviation 1 over
            the training clients; missing numbers become the mean. The store and saved models
            contain mean and deviation. Only with format csv, jsonl or parquet.
        image_columns: Columns with images: PNG, JPEG, GIF or BMP files, or lists of pixels from 0
            to 255. Only with format parquet.
        text_column: Column with text; LEAF: position of the text in a list of strings. Only with
            format leaf, csv, jsonl or parquet.
        feature_name: Name of the features in the store. [pixels for images of bytes, otherwise x]
            Only with format leaf, npz, csv, jsonl or parquet.
        feature_shape: Shape of an example's features, if not a vector, e.g. 28,28. In a table it
            needs exactly one input in --feature_columns. Only with format leaf, csv, jsonl or
            parquet.
        class_names: Names of the classes in the order of their numbers; labels may be names or
            numbers. Without names, labels are numbers. Only with format leaf, idx, npz, csv, jsonl
            or parquet.
        classes: Labels to keep, which become 0, 1, ... in this order. [all] Only with format idx.
        num_clients: Number of clients to deal the examples to. Only with format idx.
        sentences: Where sentences end. Only with format text_folders.
        sentences_per_client: Number of sentences of a client, which is a passage; 0: a client is a
            whole file. Only with format text_folders.
        sentences_per_group: Number of sentences of a group, which --split_by=group keeps in one
            split, a multiple of --sentences_per_client; 0: a group is a whole file. Only with
            format text_folders.
        markup: Treatment of code and of TeX formulas: drop, keep, or word, which writes <code> or
            <math> instead; one treatment for both, or NAME:TREATMENT for each. Only with format
            stackexchange.
        tokenizer: Rule that splits text into words. [text_folders: spaces, otherwise words] Only
            with format text_folders, plays, leaf, csv, jsonl or parquet.
        case: Case of words. Only with format text_folders, plays, leaf, csv, jsonl or parquet.
        punctuation: Treatment of words without a letter or digit. Only with format text_folders,
            plays, leaf, csv, jsonl or parquet.
    """

    format: str = ""
    input: tuple[str, ...] = ()
    output: str = ""
    report: Optional[Path] = None
    seed: Annotated[int, Within(least=0)] = 0
    max_records: Optional[Annotated[int, Within(least=1)]] = None
    processes: Optional[Annotated[int, Within(least=1)]] = None
    bad_records: Literal["fail", "skip"] = "fail"
    max_record_mb: Annotated[int, Within(least=1)] = 64
    max_unpacked_mb: Annotated[int, Within(least=1)] = 200_000
    max_unpacked_ratio: Annotated[int, Within(least=1)] = 200
    max_pixels: Annotated[int, Within(least=1)] = 1 << 24
    split: tuple[str, ...] = ("train:0.8", "heldout:0.1", "test:0.1")
    split_by: Literal["client", "group", "example"] = "client"
    stratify: bool = True
    min_per_split: Annotated[int, Within(least=0)] = 1
    min_domain_examples: Annotated[int, Within(least=1)] = FEW_EXAMPLES
    vocabulary_size: Annotated[int, Within(least=1)] = 10000
    domain_names: tuple[str, ...] = ()
    domain: Literal["type", "site", "tag"] = "type"
    domain_name: Optional[str] = None
    domains_file: Optional[str] = None
    delimiter: Optional[str] = None
    encoding: Literal["utf-8", "utf-16", "cp1252", "latin-1"] = "utf-8"
    encoding_errors: Literal["strict", "replace"] = "strict"
    decimal: Literal["point", "comma"] = "point"
    client_column: Optional[str] = None
    domain_column: Optional[str] = None
    group_column: Optional[str] = None
    label_column: Optional[str] = None
    label_kind: Literal["class", "number"] = "class"
    split_column: Optional[str] = None
    feature_columns: tuple[str, ...] = ()
    categorical_columns: tuple[str, ...] = ()
    max_categories: Annotated[int, Within(least=1)] = 1000
    missing_values: Literal["fail", "zero", "mark"] = "fail"
    missing_marks: tuple[str, ...] = ()
    standardize: bool = False
    image_columns: tuple[str, ...] = ()
    text_column: Optional[str] = None
    feature_name: Optional[str] = None
    feature_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    num_clients: Annotated[int, Within(least=1)] = 100
    sentences: Literal["punctuation", "lines", "none"] = "punctuation"
    sentences_per_client: Annotated[int, Within(least=0)] = 0
    sentences_per_group: Annotated[int, Within(least=0)] = 0
    markup: tuple[str, ...] = DEFAULT_MARKUP
    tokenizer: Optional[Literal["spaces", "words", "letters"]] = None
    case: Literal["keep", "lower", "upper"] = "keep"
    punctuation: Literal["keep", "drop"] = "keep"

    @property
    def max_record_bytes(self) -> int:
        """Maximum bytes of a record."""
        return self.max_record_mb * MB

    @property
    def sign_between(self) -> str:
        """The separator of columns; empty if `delimiter` is not given."""
        return DELIMITERS.get(self.delimiter or "", self.delimiter or "")

    @property
    def are_classes(self) -> bool:
        """Whether labels are classes."""
        return self.label_kind == "class"

    def __post_init__(self) -> None:
        """Raises an `OptionError` if a value is out of range."""
        super().__post_init__()
        if self.delimiter is not None and (
            len(self.sign_between) != 1 or self.sign_between in '"\r\n'
        ):
            raise self.error("delimiter", f"one character, or {', '.join(DELIMITERS)}")


def check_used(options: ImportOptions, given: Collection[str]) -> None:
    """Rejects options of the user that have no effect in combination with the other options.

    Args:
        given: Names of the options that a user gave.
    """
    for formats, names in _OPTIONS_BY_FORMATS.items():
        for name in names:
            if name in given and options.format not in formats:
                needs = f"it needs format={' or '.join(formats)}"
                raise options.error(name, f"no value with format={options.format}: {needs}")
    if "min_per_split" in given and not options.stratify:
        expected = "no value with stratify=false: it needs stratify=true"
        raise options.error("min_per_split", expected)


def parse_markup(texts: Sequence[str]) -> dict[str, str]:
    """Parses --markup; returns the treatment of "code" and of "math".

    Args:
        texts: TREATMENT for both, or NAME:TREATMENT for one; the default applies to the rest.
    """
    given: dict[str, str] = {}
    for text in texts:
        kind, colon, treatment = text.partition(":")
        kinds = [kind] if colon else ["code", "math"]
        treatment = treatment if colon else kind
        if treatment not in TREATMENTS or not {*kinds} <= {"code", "math"} - {*given}:
            expected = f"{', '.join(TREATMENTS)}, or one each as code:drop,math:word"
            raise OptionError("markup", expected, ",".join(texts))
        given.update(dict.fromkeys(kinds, treatment))
    return {**dict(text.split(":") for text in DEFAULT_MARKUP), **given}


def treat_math(text: str, treatment: str) -> str:
    """Drops the formulas of a text, keeps them, or replaces each by `MATH_MARK`."""
    if treatment == "keep" or ("$" not in text and "\\" not in text):
        return text
    mark = f" {MATH_MARK} " if treatment == "word" else " "
    return _MATH.sub(mark, text)
