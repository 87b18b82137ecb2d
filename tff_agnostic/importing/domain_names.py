"""Renaming of domains, with checks of their names and of their number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError
from tff_agnostic.importing.cells import CellError
from tff_agnostic.importing.source import ReadLog, Rows

# Maximum number of domains. Each has a learnt weight; a column with far more values is probably not
# a column of domains.
_MAX_DOMAINS = 1000
# Names that tables, plots and TensorBoard use for results over several domains.
_RESERVED = frozenset({"all", "difference", "overall", "worst"})


class DomainNames:
    """Maps the domains of a source to the user's names.

    Args:
        texts: VALUE:NAME for each value of the source, or VALUE alone if it is also the name. If
            empty, all values are names.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        names: dict[str, str] = {}
        for text in texts:
            value, _, name = text.partition(":")
            if not value or value in names or text.endswith(":"):
                raise OptionError("domain_names", "different VALUE:NAME", ",".join(texts))
            names[value] = name or value
        self._names: Mapping[str, str] = names
        self._seen: set[str] = set()

    def named(self, rows: Rows, log: ReadLog) -> Rows:
        """Renames the domains of rows; omits and logs rows whose domain has no name."""
        coded = rows.domain.dictionary_encode()
        values = coded.dictionary.to_pylist()
        names = [self._names.get(value) if self._names else value for value in values]
        for name in sorted({name for name in names if name} - self._seen):
            self._add(name)
        domain = pa.array([name or None for name in names], pa.string()).take(coded.indices)
        if not domain.null_count:
            return dataclasses.replace(rows, domain=domain)
        expected = f"one of {', '.join(self._names)}" if self._names else "a name"
        for k in np.flatnonzero(np.asarray(domain.is_null())).tolist():
            detail = f"expected {expected} as domain, found {rows.domain[k].as_py()!r}"
            log.bad(rows.place(k), CellError("unknown domain", detail), rows.client[k].as_py())
        return dataclasses.replace(rows, domain=domain).selected(np.asarray(domain.is_valid()))

    def _add(self, name: str) -> None:
        if name in _RESERVED:
            raise UserError(
                f"expected other domain names than {', '.join(sorted(_RESERVED))}, which results "
                f"use, found {name!r}: rename it with domain_names=VALUE:NAME,... or, as the only "
                "domain, with domain_name"
            )
        if len(self._seen) == _MAX_DOMAINS:
            some = ", ".join(sorted(self._seen)[:3])
            raise UserError(
                f"expected at most {_MAX_DOMAINS} domains, found more, such as {some}: is it the "
                "right column?"
            )
        self._seen.add(name)
