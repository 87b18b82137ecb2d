"""The fast parsers of HTML and words match the general parsers."""

import random
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tff_agnostic.importing import text as text_module
from tff_agnostic.importing.text import html_blocks, split_sentences

_NAMES = ["p", "br", "code", "PRE", "em", "a", "li", "script", "h1"]
_PIECES = [
    *("word ", "&amp;", "&", "a > b", "\u00e9\u2014 ", "<", "</", "<!-- c -->", "</p/>", "<p x>"),
    *("<p\u00a0a='b'>", "<p a='b'c='d'>", '<a href="x>y">', '<a href="q?a=1&amp;b">', "<br/>"),
    *("<br />", "</ p>", "<p/ a='b'>", "<![CDATA[x]]>", "<?x?>", "<>", "text. ", "< p>"),
]


class _Parser(HTMLParser):
    """A reference implementation of `html_blocks`, written from its docstring."""

    def __init__(self, dropped: set[str], code: str) -> None:
        super().__init__()
        self.texts, self.depth, self.dropped, self.code = [""], 0, dropped, code

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        self.depth += tag in self.dropped

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        if tag in text_module._BLOCKS:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in text_module._BLOCKS:
            self.texts.append("")
        elif tag in self.dropped:
            self.texts[-1] += self.code if tag == "code" and self.depth == 1 else " "
        self.depth -= tag in self.dropped and self.depth > 0

    def handle_data(self, data: str) -> None:
        self.texts[-1] += "" if self.depth else data

    def parse_html_declaration(self, i: int) -> int:
        return self.parse_bogus_comment(i)


@pytest.mark.parametrize("code", ["drop", "word", "keep"])
def test_html_blocks_equal_the_reference_parser(code):
    draw = random.Random(5)
    plain = 0
    for _ in range(600):
        tags = [f"<{mark}{name}>" for mark in ("", "/") for name in draw.choices(_NAMES, k=4)]
        html = "".join(draw.choices([*tags, *_PIECES, *["and "] * 20], k=draw.randint(1, 12)))
        dropped = {"script", "style"} | (set() if code == "keep" else {"code", "pre"})
        parser = _Parser(dropped, " \x02 " if code == "word" else " ")
        parser.feed(html)
        parser.close()
        assert html_blocks(html, code) == [text for text in parser.texts if text.strip()], html
        plain += text_module._plain_blocks(html, code) is not None
    # Both parsers were used: the fast one for some texts, the general one for others.
    assert 80 < plain < 560


def test_splitting_into_words_equals_a_regular_expression():
    draw = random.Random(5)
    pattern = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*|[^\sa-z0-9]")
    for _ in range(1000):
        # Without .?! each text is one sentence.
        text = "".join(draw.choices("ab1'-\" )(,:_\n<", k=draw.randint(1, 20)))
        expected = [" ".join(pattern.findall(text))] if re.search("[a-z0-9]", text) else []
        assert split_sentences(text) == expected
