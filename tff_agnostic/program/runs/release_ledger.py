"""The ledger of private evaluations.

A release is written to the run's ledger, `releases.jsonl`, before its numbers are shown. A crash
may lose rows of metrics.csv, but numbers that were shown remain known. The privacy account of a
resumed run therefore counts the ledger's lines instead of these rows.
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
        path: The file. Only its owner may read it, as it has digests of exact data, such as client
            ids.

    Attributes:
        releases: The releases in order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.releases: list[Release] = []

    def load(self, shown: int) -> None:
        """Reads the file, except for a last line that is cut off, which `write` then removes.

        A last line without a line break was cut off by a crash, before its evaluation was shown.

        Args:
            shown: Number of evaluations in metrics.csv; the file must have at least as many.
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
        """Rewrites the file if its lines differ from the releases."""
        content = "".join(f"{_line(release)}\n" for release in self.releases)
        if content != self._content():
            with atomic_file(self._path, owner_only=True) as file:
                file.write(content.encode())
            sync_folder(self._path.parent)

    def enter(self, release: Release) -> bool:
        """Enters a release before it is shown, unless its noise was used for other sums.

        Returns:
            Whether the release may be shown. False if other sums were released with the same noise,
            as the difference of the two releases would have no noise. A release entered twice
            counts once.
        """
        same_noise = [earlier for earlier in self.releases if earlier.place == release.place]
        if not same_noise:
            append_line(self._path, _line(release))
            self.releases.append(release)
        return all(earlier.sums == release.sums for earlier in same_noise)

    def evaluations(self) -> set[tuple[int, str]]:
        """Returns the pair (round, `Release.evaluated`) of each release."""
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
                f"{self._path}: expected a private evaluation in each line, found {line[:60]!r} in "
                f"line {number}: without the complete file the run's privacy is unknown"
            )
        return release


def _line(release: Release) -> str:
    return json.dumps(dataclasses.asdict(release))
