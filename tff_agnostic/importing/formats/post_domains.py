"""Domains of posts on Stack Exchange: what a post is, its site, or a tag of its question."""

import bisect
from array import array
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from tff_agnostic.importing.records.options import ImportOptions

_TYPES = {"1": "question", "2": "answer"}


def type_of_post(attributes: Mapping[str, str]) -> Optional[str]:
    """Returns "question" or "answer"; None of a post that is neither."""
    return _TYPES.get(attributes.get("PostTypeId", ""))


def tags_of_post(attributes: Mapping[str, str]) -> list[str]:
    """Returns the tags of a question, from <a><b> or, in newer dumps, |a|b|."""
    text = attributes.get("Tags", "").replace("><", "|").strip("<>|")
    return text.split("|") if text else []


class _QuestionTags:
    """A tag of each question of a site, in 12 bytes each: answers come later, and have none."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._tags = array("i")
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []

    def add(self, question: int, tag: str) -> None:
        """Notes the tag of a question."""
        number = self._numbers.setdefault(tag, len(self._numbers))
        if number == len(self._names):
            self._names.append(tag)
        # Dumps are sorted by id, so that this is the end.
        at = bisect.bisect_left(self._ids, question)
        self._ids.insert(at, question)
        self._tags.insert(at, number)

    def of(self, question: int) -> Optional[str]:
        """Returns the tag of a question; None if it was not seen."""
        at = bisect.bisect_left(self._ids, question)
        if at == len(self._ids) or self._ids[at] != question:
            return None
        return self._names[self._tags[at]]


class PostDomains:
    """Finds the domains of one site's posts, which are asked for in the order of the dump.

    Args:
        options: Of the import.
        site: The site's name.

    Attributes:
        kind: What domains are: a name of `POST_DOMAINS`.
    """

    def __init__(self, options: ImportOptions, site: str) -> None:
        self.kind = options.domain
        self._site = site
        self._named = frozenset(text.partition(":")[0] for text in options.domain_names)
        self._tags = _QuestionTags()
        self._domain_of = _DOMAINS[options.domain]

    def of(self, attributes: Mapping[str, str]) -> Optional[str]:
        """Returns the domain of a question or answer; None if it has none."""
        return self._domain_of(self, attributes)

    def _of_site(self, attributes: Mapping[str, str]) -> str:
        del attributes
        return self._site

    def _of_tag(self, attributes: Mapping[str, str]) -> Optional[str]:
        if type_of_post(attributes) == "answer":
            parent = attributes.get("ParentId", "")
            return self._tags.of(int(parent)) if _is_id(parent) else None
        tag = self._first(tags_of_post(attributes))
        if tag is not None and _is_id(attributes["Id"]):
            self._tags.add(int(attributes["Id"]), tag)
        return tag

    def _first(self, tags: Sequence[str]) -> Optional[str]:
        """Returns the first tag that --domain_names names, or else the first one."""
        named = [tag for tag in tags if tag in self._named]
        return next(iter([*named, *tags]), None)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


# A name of `POST_DOMAINS` -> how it is found.
_DOMAINS: dict[str, Callable[[PostDomains, Mapping[str, str]], Optional[str]]] = {
    "type": lambda posts, attributes: type_of_post(attributes),
    "site": PostDomains._of_site,
    "tag": PostDomains._of_tag,
}
