"""The fast parsers of HTML and words match the general parsers."""

import random
import re

import pytest

from tests.importing.independent import WORD, paragraphs
from tff_agnostic.importing import text as text_module
from tff_agnostic.importing.text import html_blocks, split_sentences

_NAMES = ["p", "br", "code", "PRE", "em", "a", "li", "script", "h1"]
_PIECES = [
    *("word ", "&amp;", "&", "a > b", "\u00e9\u2014 ", "<", "</", "<!-- c -->", "</p/>", "<p x>"),
    *("<p\u00a0a='b'>", "<p a='b'c='d'>", '<a href="x>y">', '<a href="q?a=1&amp;b">', "<br/>"),
    *("<br />", "</ p>", "<p/ a='b'>", "<![CDATA[x]]>", "<?x?>", "<>", "text. ", "< p>"),
]


@pytest.mark.parametrize("code", ["drop", "word", "keep"])
def test_html_blocks_equal_the_reference_parser(code):
    draw = random.Random(5)
    plain = 0
    for _ in range(600):
        tags = [f"<{mark}{name}>" for mark in ("", "/") for name in draw.choices(_NAMES, k=4)]
        html = "".join(draw.choices([*tags, *_PIECES, *["and "] * 20], k=draw.randint(1, 12)))
        dropped = {"script", "style"} | (set() if code == "keep" else {"code", "pre"})
        expected = paragraphs(html, dropped, " \x02 " if code == "word" else " ")
        assert html_blocks(html, code) == expected, html
        plain += text_module._plain_blocks(html, code) is not None
    # Both parsers were used: the fast one for some texts, the general one for others.
    assert 80 < plain < 560


def test_splitting_into_words_equals_a_regular_expression():
    draw = random.Random(5)
    for _ in range(1000):
        # Without .?! each text is one sentence.
        text = "".join(draw.choices("ab1'-\" )(,:_\n<", k=draw.randint(1, 20)))
        expected = [" ".join(WORD.findall(text))] if re.search("[a-z0-9]", text) else []
        assert split_sentences(text) == expected
