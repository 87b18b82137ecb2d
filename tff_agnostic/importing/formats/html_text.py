"""HTML of posts to text."""

import re
from html import unescape
from html.parser import HTMLParser
from typing import Optional

from tff_agnostic.importing.records.markup import CODE_MARK

# What stands in these is no prose.
_CODE = {"code", "pre"}
_SCRIPTS = {"script", "style"}
_DROPPED_BY_TREATMENT = {"drop": _CODE | _SCRIPTS, "word": _CODE | _SCRIPTS, "keep": _SCRIPTS}
# A sentence does not go on beyond one of these.
_BLOCKS = {
    "blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "table", "td", "th", "tr", "ul",
}  # fmt: skip
# Characters after a "<" without end within which tags are still told from text as usual.
_MAX_UNFINISHED = 4096
_TAG = re.compile("<[^<>]*>")


class _TextOfHtml(HTMLParser):
    def __init__(self, code: str) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[list[str]] = [[]]
        self._depth = 0
        self._dropped = _DROPPED_BY_TREATMENT[code]
        # What stands for code inside of a sentence.
        self._code = f" {CODE_MARK} " if code == "word" else " "

    def updatepos(self, i: int, j: int) -> int:
        # Lines are counted otherwise, at each tag, and nobody asks for them.
        return j

    def parse_html_declaration(self, i: int) -> int:
        try:
            return super().parse_html_declaration(i)
        except (AssertionError, NotImplementedError):
            # What <![ may begin besides CDATA is not known to it; browsers see a comment.
            return self.parse_bogus_comment(i)

    def close(self) -> None:
        # What is left begins with a tag or comment without end, which the parser would look for
        # again at each "<" after it.
        if len(self.rawdata) > _MAX_UNFINISHED:
            self.handle_data(unescape(_TAG.sub(" ", self.rawdata)))
            self.rawdata = ""
        super().close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])
        if tag in self._dropped:
            self._depth += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])
        else:
            # What code stood between must not become one word.
            self.blocks[-1].append(self._instead_of(tag))
        if tag in self._dropped and self._depth:
            self._depth -= 1

    def _instead_of(self, tag: str) -> str:
        if tag == "code" and self._depth == 1:
            return self._code
        return " " if tag in self._dropped else ""

    def handle_data(self, data: str) -> None:
        if not self._depth:
            self.blocks[-1].append(data)


def html_blocks(html: str, code: str = "drop") -> list[str]:
    """Returns the text of each paragraph, heading, list item and so on.

    Tags are left out, and entities are the characters that they stand for. Whatever is not
    well-formed is taken as browsers do: this never fails.

    Args:
        html: The HTML.
        code: What becomes of code, a name of `markup.TREATMENTS`; blocks of code (`pre`) have no
            word in their place, as they stand in no sentence.
    """
    parser = _TextOfHtml(code)
    parser.feed(html)
    parser.close()
    texts = ("".join(parts) for parts in parser.blocks)
    return [text for text in texts if text and not text.isspace()]
