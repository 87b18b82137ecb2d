"""Code and formulas in posts: left out, kept, or one word in their place."""

import dataclasses
import re
from collections.abc import Sequence

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry

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

    Raises:
        UserError: If they are something else, or one is named twice.
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
