"""A listener that records events."""

from pathlib import Path


class RecordingListener:
    """"""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.files: list[str] = []

    def step(self, name: str) -> None:
        """See `Listener`."""

    def line(self, text: str) -> None:
        self.lines.append(text)

    def results(self, folder: Path) -> None:
        self.files.extend(path.read_text() for path in folder.iterdir())
