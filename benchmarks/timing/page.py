"""Replaces the generated section of a hand-written Markdown page."""

import dataclasses
from pathlib import Path

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_text

# Lines around the section: Markdown comments, which are invisible on the rendered page.
BEGIN = "<!-- What ./run benchmark --page writes begins here. -->"
END = "<!-- What ./run benchmark --page writes ends here. -->"


@dataclasses.dataclass(frozen=True)
class Page:
    """A Markdown file with a section between the lines `BEGIN` and `END`."""

    path: Path

    def check(self) -> None:
        """Raises a UserError if the page has no section to replace."""
        self._parts()

    def replace_section(self, text: str) -> None:
        """Replaces the section by Markdown text, and leaves the rest of the page unchanged."""
        before, after = self._parts()
        write_text(self.path, f"{before}\n{text.rstrip()}\n\n{after}")

    def _parts(self) -> tuple[str, str]:
        """Returns the page up to and including `BEGIN`, and from `END` on."""
        try:
            page = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            reason = (e.strerror if isinstance(e, OSError) else None) or "it is not UTF-8 text"
            raise UserError(f"--page: expected a page, found {self.path}: {reason}") from e
        before, begin, rest = page.partition(f"{BEGIN}\n")
        _, end, after = rest.partition(f"{END}\n")
        if not end:
            raise UserError(
                f"--page: expected the line {BEGIN!r} and below it {END!r}, "
                f"found {self.path} without"
            )
        return before + begin, end + after
