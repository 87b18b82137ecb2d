"""A section of a hand-written page that a command writes again."""

import dataclasses
from pathlib import Path

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_text

# Comments of Markdown, which readers of the rendered page do not see.
BEGIN = "<!-- What ./run benchmark --page writes begins here. -->"
END = "<!-- What ./run benchmark --page writes ends here. -->"


@dataclasses.dataclass(frozen=True)
class Page:
    """A Markdown page with a section between the lines `BEGIN` and `END`.

    Attributes:
        path: The page's file.
    """

    path: Path

    def check(self) -> None:
        """Finds out whether there is a section to replace."""
        self._parts()

    def replace_section(self, text: str) -> None:
        """Puts text in the place of the section; whatever is around it stays as it is.

        Args:
            text: Blocks of Markdown.
        """
        before, after = self._parts()
        write_text(self.path, f"{before}\n{text.rstrip()}\n\n{after}")

    def _parts(self) -> tuple[str, str]:
        """Returns what is before the section and after it, each with its line."""
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
