"""Values of an import's flags that choose one of few, and what help texts say of each."""

from tff_agnostic.registry import Registry

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
        "number": "any numbers, of which a model of your own (--task=custom) has a loss",
    },
)
MISSING_VALUES: Registry[str] = Registry(
    "treatment of missing values",
    {
        "fail": "the record is bad",
        "zero": "a number is 0, a category is none of the known ones",
        "mark": "the same, and said: each column of numbers has one more, 1 where it is missing, "
        "and each of categories a category of its own",
    },
)
BAD_RECORDS: Registry[str] = Registry(
    "treatment of bad records",
    {"fail": "the first one ends the import", "skip": "they are left out, and counted by reason"},
)
