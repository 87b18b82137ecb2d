"""HTML of posts to text, without code."""

from html.parser import HTMLParser
from typing import Optional

# What stands in these is no prose.
_DROPPED = {"code", "pre", "script", "style"}
# A sentence does not go on beyond one of these.
_BLOCKS = {
    "blockquote", "br", "dd", "div", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "table", "td", "th", "tr", "ul",
}  # fmt: skip


class _TextOfHtml(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[list[str]] = [[]]
        self._depth = 0

    def updatepos(self, i: int, j: int) -> int:
        # Lines are counted otherwise, at each tag, and nobody asks for them.
        return j

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])
        if tag in _DROPPED:
            self._depth += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.blocks.append([])
        else:
            # What code stood between must not become one word.
            self.blocks[-1].append(" " if tag in _DROPPED else "")
        if tag in _DROPPED and self._depth:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        if not self._depth:
            self.blocks[-1].append(data)


def html_blocks(html: str) -> list[str]:
    """Returns the text of each paragraph, heading, list item and so on.

    Code is left out, tags are too, and entities are the characters that they stand for. Whatever is
    not well-formed is taken as browsers do: this never fails.
    """
    parser = _TextOfHtml()
    parser.feed(html)
    parser.close()
    texts = ("".join(parts) for parts in parser.blocks)
    return [text for text in texts if text and not text.isspace()]
