"""Writes a page at each old path of the documentation that leads to where its sections are now.

`docs/moved.toml` has a table for each page of the last release that has moved: `pages`, which have
its text now; and `headings`, which it had. ` -> page.md#anchor` stands behind a heading where no
page has one of the same words.

    python tools/write_stubs.py [--check]
"""

import re
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """Returns what a link calls a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def stub(old: str, pages: list[str], headings: list[str]) -> str:
    """Returns the text of an old page.

    Raises:
      ValueError: a heading leads to a page or to a heading that is not there.
    """
    up = "../" * old.count("/")
    anchors = {p: {anchor(h) for h in _HEADING.findall((DOCS / p).read_text())} for p in pages}
    lines = [f"# Moved: {old}", "", "What this page had is on:", ""]
    lines += [f"- [{page}]({up}{page})" for page in pages]
    for entry in headings:
        heading, _, target = entry.partition(" -> ")
        if not target:
            page = next((p for p in pages if anchor(heading) in anchors[p]), None)
            if page is None:
                raise ValueError(f"docs/moved.toml, {old}: no page has the heading {heading!r}")
            target = f"{page}#{anchor(heading)}"
        if not (DOCS / target.partition("#")[0]).exists():
            raise ValueError(f"docs/moved.toml, {old}: {heading!r} leads to {target}")
        lines += ["", f"## {heading}", "", f"[{target}]({up}{target})"]
    return "\n".join(lines) + "\n"


def stubs() -> dict[Path, str]:
    """Returns the text of the page at each old path."""
    moved = tomllib.loads((DOCS / "moved.toml").read_text())
    return {DOCS / old: stub(old, **now) for old, now in moved.items()}


def main() -> None:
    """Writes the pages; with `--check` ends with an error if one is not as it would be written."""
    written = stubs()
    if "--check" in sys.argv[1:]:
        stale = [str(p) for p, t in written.items() if not p.exists() or p.read_text() != t]
        sys.exit(f"run tools/write_stubs.py: {', '.join(stale)}" if stale else 0)
    for path, text in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
