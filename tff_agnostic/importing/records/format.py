"""What a format is."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.importing.records.reading import ReadLog, SourceExample

Read = Callable[[ImportOptions, Sequence[Path], ReadLog], Iterator[SourceExample]]


def _nothing_to_check(options: ImportOptions) -> None:
    del options


@dataclasses.dataclass(frozen=True)
class Format:
    """A registry entry: how a public format is read.

    Attributes:
        summary: One line for help texts.
        read: (options, input paths, log) -> examples, a generator; it tells the log what it leaves
            out, and how many bytes it has read.
        find_inputs: Input paths -> the files that will be read.
        check: Raises a `UserError` if options are missing or contradict one another.
        has_groups: Whether examples may have a group.
    """

    summary: str
    read: Read
    find_inputs: Callable[[Sequence[Path]], list[Path]]
    check: Callable[[ImportOptions], None] = _nothing_to_check
    has_groups: bool = False
