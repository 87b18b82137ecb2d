"""The ledger of private evaluations.

Each release is in the run's ledger, `releases.jsonl`, before anybody sees its numbers. A crash
takes rounds back, and rows of metrics.csv with them. It cannot take back what was seen. The account
of a resumed run therefore counts the lines of the ledger, and not rows.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import get_type_hints

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import append_line, atomic_file, sync_folder
from tff_agnostic.training.private_evaluation import Release


class ReleaseLedger:
    """The ledger of one run.

    Args:
        path: The file. Its digests are of exact data, such as names of clients, so it is for its
            owner alone.

    Attributes:
        releases: What it holds, in the order in which it was released.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.releases: list[Release] = []

    def load(self, shown: int) -> None:
        """Reads the file; `write` makes it follow.

        A last line without its end was cut off: its evaluation was not shown, and does not count.

        Args:
            shown: Number of evaluations of a model according to metrics.csv; the file has them all.
        """
        *lines, _cut_off = self._content().split("\n")
        self.releases = [self._release(n, line) for n, line in enumerate(lines, start=1)]
        recorded = sum(release.num_models for release in self.releases)
        if recorded < shown:
            raise UserError(
                f"{self._path}: expected {shown} private evaluations of a model as in metrics.csv, "
                f"found {recorded}: without the complete file the run's privacy is unknown"
            )

    def write(self) -> None:
        """Writes all lines anew if the file has others."""
        content = "".join(f"{_line(release)}\n" for release in self.releases)
        if content != self._content():
            with atomic_file(self._path, owner_only=True) as file:
                file.write(content.encode())
            sync_folder(self._path.parent)

    def enter(self, release: Release) -> bool:
        """Enters a release, which may be shown afterwards, unless its noise was used before.

        Returns:
            False if other sums were released with the same noise: these may not be shown, as their
            difference would be exact. One that is there already counts once.
        """
        same_noise = [there for there in self.releases if there.place == release.place]
        if not same_noise:
            append_line(self._path, _line(release))
            self.releases.append(release)
        return all(there.sums == release.sums for there in same_noise)

    def known(self) -> set[tuple[int, str]]:
        """Returns round and `evaluated` of each release."""
        return {(r.round_num, r.evaluated) for r in self.releases}

    def _content(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as e:
            raise UserError(f"{self._path}: cannot read: {e.strerror or e}") from e

    def _release(self, number: int, line: str) -> Release:
        try:
            release = Release(**json.loads(line))
        except (TypeError, ValueError, RecursionError):
            release = None
        kinds = get_type_hints(Release)
        if release is None or any(
            type(value) is not kinds[name] for name, value in dataclasses.asdict(release).items()
        ):
            raise UserError(
                f"{self._path}: expected a private evaluation in each line, found something else "
                f"in line {number}: without the file as it was, nobody knows what the run has spent"
            )
        return release


def _line(release: Release) -> str:
    return json.dumps(dataclasses.asdict(release))
