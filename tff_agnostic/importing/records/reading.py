"""What readers yield, and whom they tell of what they left out."""

import dataclasses
from collections import Counter
from typing import Callable, Optional

from tff_agnostic.data.records import Record
from tff_agnostic.errors import UserError
from tff_agnostic.importing.records.distinct import DistinctKeys


@dataclasses.dataclass(frozen=True)
class SourceExample:
    """An example, and where it is from.

    Attributes:
        record: What goes into the store.
        place: Which example of the source it is, e.g. "users.csv:17"; different for every one.
        group: What --split_by=group keeps together; None where the format has no groups.
    """

    record: Record
    place: str
    group: Optional[str] = None


class RecordError(UserError):
    """A record that cannot become an example, in a source that may be whole otherwise.

    Args:
        place: Which record of the source.
        reason: What is wrong with it, the same for all that are wrong in the same way.
        detail: What was expected and found in this one.
    """

    def __init__(self, place: str, reason: str, detail: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.reason = reason


class ReadLog:
    """Counts what was left out, and tells how far reading is.

    Args:
        skip_bad: Whether bad records are counted instead of ending the import.
        advance: Called with the number of bytes that were read.
        say: Called with what is done now, when that is no longer reading.

    Attributes:
        skipped: How many records were left out, by reason.
        num_records: How many records were read.
        missing: How many examples lack the value of a column, by column.
    """

    def __init__(
        self,
        skip_bad: bool = False,
        advance: Callable[[int], object] = lambda size: None,
        say: Callable[[str], object] = lambda what: None,
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.num_records = 0
        self.missing: Counter[str] = Counter()
        self.advance = advance
        self.say = say
        self._skip_bad = skip_bad
        self._clients_of_skipped = DistinctKeys()
        self._clients_of_kept = DistinctKeys()

    def skip(self, reason: str, client: Optional[str] = None) -> None:
        """Counts a record that is left out, as it should be."""
        self.skipped[reason] += 1
        if client is not None:
            self._clients_of_skipped.add(client)

    def bad(self, error: RecordError, client: Optional[str] = None) -> None:
        """Counts a record that is wrong.

        Raises:
            RecordError: If bad records end the import.
        """
        if not self._skip_bad:
            raise error
        self.skip(error.reason, client)

    def keep(self, client: str) -> None:
        """Notes that a client has an example."""
        self._clients_of_kept.add(client)

    def clients_without_examples(self) -> int:
        """Returns how many clients had all their records left out."""
        return self._clients_of_skipped.num_missing_in(self._clients_of_kept)
