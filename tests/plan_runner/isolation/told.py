"""A listener that remembers."""

from pathlib import Path


class Told:
    """What a listener is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.files: list[str] = []

    def step(self, name: str) -> None:
        self.steps.append(name)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def results(self, folder: Path) -> None:
        self.files.extend(path.read_text() for path in folder.iterdir())
