"""The names of domains, and how many there may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.source import RecordError, SourceExample

# Each has a weight that is learnt: far more of them are a column that holds something else.
_MAX_DOMAINS = 1000
# Names of all domains together, and of figures about several, in tables, plots and TensorBoard.
_RESERVED = frozenset({"all", "difference", "overall", "worst"})


class DomainNames:
    """Gives the domains of a source the names that the user wants.

    Args:
        texts: VALUE:NAME for each value of the source, or VALUE where it is the name; without any,
            the values are the names.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        names: dict[str, str] = {}
        for text in texts:
            value, _, name = text.partition(":")
            if not value or value in names or text.endswith(":"):
                raise UserError(
                    f"--domain_names: expected different VALUE:NAME, found {','.join(texts)!r}"
                )
            names[value] = name or value
        self._names: Mapping[str, str] = names
        self._seen: set[str] = set()

    def named(self, example: SourceExample) -> Record:
        """Returns the record of an example with its domain's name.

        Raises:
            RecordError: If the domain is not one of those that are named, or is empty.
        """
        record = example.record
        name = self._names.get(record.domain) if self._names else record.domain
        if not name:
            expected = f"one of {', '.join(self._names)}" if self._names else "a name"
            raise RecordError(
                example.place,
                "unknown domain",
                f"expected {expected} as domain, found {record.domain!r}",
            )
        self.see(name)
        if name == record.domain:
            return record
        return Record(record.client, name, record.features, record.split)

    def see(self, name: str) -> None:
        """Checks the name of a domain, and counts it."""
        if name in self._seen:
            return
        if name in _RESERVED:
            raise UserError(
                f"expected domains not called {', '.join(sorted(_RESERVED))}, as results have "
                f"other numbers of these names, found {name!r}: --domain_names=VALUE:NAME of every "
                "domain, or --domain_name of the only one, gives another name"
            )
        if len(self._seen) == _MAX_DOMAINS:
            some = ", ".join(sorted(self._seen)[:3])
            raise UserError(
                f"expected at most {_MAX_DOMAINS} domains, found more, such as {some}: is it the "
                "right column?"
            )
        self._seen.add(name)
