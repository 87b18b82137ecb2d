"""Lists the numbers of the old documentation that no page has any more.

The old pages are those of a commit that `docs/dropped_numbers.toml` names. That file also has a
table for each old page, with a reason for each number that was dropped on purpose. The status is
1 if a number is lost without a reason, or if a number with a reason is on a page again.

    python tools/lost_numbers.py [--commit=COMMIT]

It is run by hand: a shallow clone does not have the old commit.
"""

import io
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from tools.write_stubs import stubs

ROOT = Path(__file__).resolve().parents[1]
DROPPED = ROOT / "docs" / "dropped_numbers.toml"
# Numbers of items, and the targets of links, are not what a page says.
_NUMBERING = re.compile(r"^\s*\d+\.\s", re.MULTILINE)
_TARGET = re.compile(r"\]\([^)]*\)")
_NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)*(?:e[+-]?\d+)?")
# Characters on either side of a number, for a reader who looks for it.
_CONTEXT = 40


def plain(number: str) -> str:
    """Returns a number as all its spellings are written: 1,000 as 1000, .30 as 0.3."""
    digits = number.replace(",", "")
    # A version has several points.
    return digits if digits.count(".") > 1 else f"{Decimal(digits).normalize():f}"


def numbers(page: str) -> dict[str, str]:
    """Returns each number of a page, with the words around its first place."""
    text = _TARGET.sub("]", _NUMBERING.sub("", page))
    found: dict[str, str] = {}
    for match in _NUMBER.finditer(text):
        around = text[max(0, match.start() - _CONTEXT) : match.end() + _CONTEXT]
        found.setdefault(plain(match[0]), " ".join(around.split()))
    return found


def unexplained(
    old: Mapping[str, str], now: str, dropped: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yields a line for each number without a page or a reason, and for each idle reason.

    Args:
        old: The text of each old page.
        now: The text of today's pages.
        dropped: For each old page, reasons by number.
    """
    kept = numbers(now).keys()
    for page, text in old.items():
        there = numbers(text)
        reasons = {plain(number) for number in dropped.get(page, {})}
        for number, words in there.items():
            if number not in kept | reasons:
                yield f"{page}: {number} is lost: ... {words} ..."
        for number in reasons:
            if number in kept or number not in there:
                yield f"{page}: {number} needs no reason: it is not lost"
    for page in dropped.keys() - old.keys():
        yield f"{page}: there was no such page"


def _old_pages(commit: str) -> dict[str, str]:
    archive = subprocess.run(
        ["git", "archive", commit, "docs"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        sys.exit(f"this clone does not have the commit {commit}: git fetch --unshallow")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        return {
            name.removeprefix("docs/"): content.read().decode()
            for name in files.getnames()
            if name.endswith(".md") and (content := files.extractfile(name))
        }


def main() -> None:
    """Prints what is lost."""
    dropped = tomllib.loads(DROPPED.read_text())
    commit = dropped.pop("commit")
    for argument in sys.argv[1:]:
        commit = argument.removeprefix("--commit=")
    pages = set((ROOT / "docs").glob("**/*.md")) - stubs().keys()
    pages |= {ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")}
    now = "\n".join(page.read_text() for page in sorted(pages))
    lines = list(unexplained(_old_pages(commit), now, dropped))
    for line in lines:
        print(line)
    sys.exit(f"{len(lines)} numbers need a page or a reason" if lines else 0)


if __name__ == "__main__":
    main()
