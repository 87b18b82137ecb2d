"""Named, discoverable choices: algorithms, tasks, optimizers, runtimes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from tff_agnostic.base.errors import UserError

T = TypeVar("T")
# Minimum similarity of suggested names; `xls` and `plays` have a similarity of 0.5.
_MIN_SIMILARITY = 0.6


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping from names to entries; the error for an unknown name lists all names.

    Args:
        kind: Noun for an entry in messages, such as "task".
        entries: The members by name.
    """

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        self._kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> T:
        """Returns the entry called `name`."""
        if name not in self._entries:
            raise UserError(f"unknown {self._kind} {name!r}: {self._suggestion(str(name))}")
        return self._entries[name]

    def given(self, where: str, name: str) -> T:
        """Returns a user's choice; `where` is the place to name in errors, such as "--task"."""
        try:
            return self[name]
        except UserError as e:
            raise UserError(f"{where}: {e}") from None

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the entry called `name`; `default` if it does not exist."""
        return self._entries.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def _suggestion(self, name: str) -> str:
        return f"{did_you_mean(name, self._entries)}valid names: {', '.join(self._entries)}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns "did you mean NAME? " with up to two similar names; "" if no name is similar."""
    nearest = difflib.get_close_matches(name, list(names), n=2, cutoff=_MIN_SIMILARITY)
    return f"did you mean {' or '.join(nearest)}? " if nearest else ""
