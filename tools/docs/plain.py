"""Converts diagrams and notebooks to plain Markdown for the site.

A sequence diagram becomes a table of its messages, and a notebook shows its saved outputs. Nothing
is downloaded or executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Optional

_DIAGRAM = re.compile(r"^```mermaid\nsequenceDiagram\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)-?->>(\w+): (.+)")


def with_tables(text: str) -> str:
    """Replaces sequence diagrams in a page by tables, and keeps unsupported diagrams."""
    return _DIAGRAM.sub(lambda match: _table(match[1]) or match[0], text)


def _table(diagram: str) -> Optional[str]:
    names: dict[str, str] = {}
    rows = ["| from | to | what |", "|---|---|---|"]
    for line in map(str.strip, diagram.splitlines()):
        if participant := _PARTICIPANT.fullmatch(line):
            names[participant[1]] = participant[2]
        elif message := _MESSAGE.fullmatch(line):
            sender, receiver = (names.get(key, key) for key in message.groups()[:2])
            to = "itself" if sender == receiver else receiver
            rows.append(f"| {sender} | {to} | {message[3]} |")
        elif line:
            return None
    return "\n".join(rows)


def notebook_page(text: str, name: str) -> str:
    """Converts a notebook to a page with the notebook's cells and text outputs.

    Args:
        text: Content of the notebook's file.
        name: Link from the page to the notebook's file.
    """
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"]).rstrip("\n")
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source:
            parts.append(_fenced(source, "python"))
            parts += [_fenced(shown) for output in cell["outputs"] if (shown := _shown(output))]
    parts.insert(1, f"This page shows the notebook with its saved outputs: [download it]({name}).")
    return "\n\n".join(parts) + "\n"


def _shown(output: Mapping[str, Any]) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    has_picture = any(kind.startswith("image/") for kind in output.get("data", {}))
    return "" if has_picture else "".join(text).rstrip("\n")


def _fenced(text: str, language: str = "text") -> str:
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"
