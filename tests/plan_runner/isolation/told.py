"""A listener that remembers."""


class Told:
    """What a listener is told."""

    def __init__(self):
        self.steps, self.lines, self.files = [], [], []

    def step(self, name):
        self.steps.append(name)

    def line(self, text):
        self.lines.append(text)

    def results(self, folder):
        self.files.extend(path.read_text() for path in folder.iterdir())
