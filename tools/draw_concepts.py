"""Draws the figures that explain the words of the documentation: docs/images/*.svg.

They have one style and one width. On a phone of 390 pixels no letter is below 11 pixels. Text is
on a filled shape that brings its own background, or has a tone between black and white, so that it
is read on a light page and on a dark one. `--check` writes nothing and exits with 1 if a figure is
out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

_ROOT = Path(__file__).resolve().parent.parent
_FOLDER = _ROOT / "docs" / "images"
# Units of a drawing: its width, and pixels of it in a wide page.
WIDTH, SHOWN = 380, 480
_MARGIN = 10
_LINE = 17
# On white and on black: a shape's fill, its outline and its text.
COLOURS: Mapping[str, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
    "server": (("#e8f1f8", "#0072b2", "#16222b"), ("#14314a", "#56b4e9", "#eef3f6")),
    "client": (("#fdf0d9", "#b36b00", "#2b1d08"), ("#46330f", "#e69f00", "#fbf3e4")),
    "safe": (("#e0f3ea", "#00795c", "#0c2a20"), ("#0f3a2e", "#2cc49a", "#e6f7f0")),
    "step": (("#eef0f2", "#77848d", "#1d252b"), ("#2a3138", "#77848d", "#eef3f6")),
}
# Text and lines without a shape behind them.
MIDDLE = "#707b84"


def _style() -> str:
    def rules(scheme: int) -> str:
        return "\n".join(
            f"  .{kind} {{ fill: {fill}; stroke: {line} }} .on-{kind} {{ fill: {text} }}"
            f" .dot-{kind} {{ fill: {line} }}"
            for kind, (fill, line, text) in ((k, both[scheme]) for k, both in COLOURS.items())
        )

    return f"""
  text {{ font: 13px sans-serif }}
  .small {{ font-size: 12px }}
  .strong {{ font-weight: bold }}
  .code {{ font: 12px monospace }}
  .free {{ fill: {MIDDLE} }}
  .middle {{ text-anchor: middle }} .end {{ text-anchor: end }}
  polyline {{ fill: none; stroke: {MIDDLE}; stroke-width: 1.5 }}
{rules(0)}
  @media (prefers-color-scheme: dark) {{
{rules(1)}
  }}
"""


@dataclass
class Drawing:
    """A figure in the making; shapes are added from the top down.

    Attributes:
        title: What the figure shows, for readers who hear it.
        height: How high the figure is.
        parts: Its elements.
    """

    title: str
    height: float
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, line: str, style: str) -> None:
        """Adds a line of text, `y` being where letters stand."""
        self.parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(line)}</text>')

    def box(
        self,
        at: tuple[float, float, float],
        kind: str,
        lines: Sequence[str],
        style: str = "",
        height: float | None = None,
    ) -> float:
        """Adds a box with lines in it, the first one strong if it ends in a colon.

        Args:
            at: Left, top and width.
            kind: One of `COLOURS`.
            lines: What stands in it. A line that begins with `$ ` is a command.
            style: Classes of all lines, such as "small middle".
            height: Of the box; by default that of its lines.

        Returns:
            Where it ends.
        """
        left, top, width = at
        height = height or _LINE * len(lines) + 11
        self.parts.append(
            f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}"'
            f' height="{height:g}" rx="5"/>'
        )
        x = left + (width / 2 if "middle" in style else 9)
        first = top + (height - _LINE * len(lines)) / 2 + 13
        for k, line in enumerate(lines):
            own = f"on-{kind} {style}".strip()
            if line.startswith("$ "):
                line, own = line[2:], f"{own} code"
            elif line.endswith(":"):
                line, own = line[:-1], f"{own} strong"
            self.text(x, first + _LINE * k, line, own)
        return top + height

    def arrow(self, *points: tuple[float, float]) -> None:
        """Adds a line with a head at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" marker-end="url(#head)"/>')

    def dots(self, x: float, y: float, number: int, kind: str) -> None:
        """Adds a row of examples around a middle."""
        for k in range(number):
            self.parts.append(
                f'<circle class="dot-{kind}" cx="{x + 13 * (k - (number - 1) / 2):g}" cy="{y:g}"'
                ' r="4.5"/>'
            )

    def svg(self) -> str:
        """Returns the file."""
        scale = SHOWN / WIDTH
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SHOWN}"'
            f' height="{self.height * scale:g}" viewBox="0 0 {WIDTH} {self.height:g}" role="img">'
        )
        marker = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            f' markerHeight="8" orient="auto"><path fill="{MIDDLE}" d="M0 0 L8 4 L0 8 z"/></marker>'
        )
        lines = [head, f"<title>{escape(self.title)}</title>", f"<style>{_style()}</style>", marker]
        return "\n".join([*lines, *self.parts, "</svg>", ""])


def a_round() -> Drawing:
    """A round: what goes to clients, what they do, and what comes back."""
    drawing = Drawing("A round of AgnosticFedAvg in six steps", 432)
    inner = WIDTH - 2 * _MARGIN
    end = drawing.box((_MARGIN, 6, inner), "server", ["Server:", "model w, domain weights lambda"])
    drawing.arrow((60, end), (60, end + 34))
    drawing.text(72, end + 22, "1 send w and lambda to some clients", "free")
    top = end + 36
    # Three of the clients of the other figure.
    for k, client in enumerate((1, 3, 4)):
        left, counts = _MARGIN + k * 124, EXAMPLES[client]
        drawing.box((left, top, 112), "step", [f"Client {client + 1}:", ""], "middle")
        before = 0
        for number, kind in zip(counts, KINDS):
            middle = left + 56 + 6.5 * (2 * before + number - sum(counts))
            drawing.dots(middle, top + 33, number, kind)
            before += number
    work = [
        "On each client, with its own examples:",
        "2 measure the loss of each domain",
        "3 train w for some steps, each domain",
        "weighted by lambda",
    ]
    end = drawing.box((_MARGIN, top + 51, inner), "step", work)
    drawing.arrow((60, end), (60, end + 34))
    drawing.text(72, end + 22, "4 send update, losses and counts", "free")
    summed = ["Sum over the clients:", "with secure aggregation only sums come out"]
    end = drawing.box((_MARGIN, end + 36, inner), "safe", summed)
    drawing.arrow((60, end), (60, end + 20))
    update = [
        "Server:",
        "5 add the average update to w",
        "6 raise lambda where the loss is large,",
        "lower it where the loss is small;",
        "then the next round, with other clients",
    ]
    drawing.box((_MARGIN, end + 22, inner), "server", update)
    return drawing


# Made-up examples of five clients in three domains, and the losses of a model on the domains.
DOMAINS = ("es", "pt", "ca")
EXAMPLES = ((5, 0, 0), (4, 0, 1), (5, 0, 0), (3, 2, 0), (2, 2, 0))
LOSSES = (0.30, 0.40, 0.90)
# How the examples of each domain look.
KINDS = ("server", "safe", "client")


def shares() -> list[float]:
    """Returns each domain's share of the examples."""
    totals = [sum(column) for column in zip(*EXAMPLES)]
    return [total / sum(totals) for total in totals]


def mean_loss(weights: Sequence[float]) -> float:
    """Returns the loss of a mixture of the domains, for weights that sum up to 1."""
    return sum(weight * loss for weight, loss in zip(weights, LOSSES))


def clients_by_domains() -> Drawing:
    """The two partitions of the data, and the losses of two mixtures of the domains."""
    drawing = Drawing("Examples by client and by domain, and the weights of the domains", 436)
    left, right, inner = 104, WIDTH - 18, WIDTH - 2 * _MARGIN
    middles = [left + 64 * (k + 0.5) for k in range(len(DOMAINS))]

    def row(y: float, name: str, cells: Sequence[str], style: str) -> None:
        drawing.text(_MARGIN + 9, y, name, style)
        for x, cell in zip(middles, cells):
            drawing.text(x, y, cell, f"{style} middle")

    drawing.text(_MARGIN, 18, "A row is a client, a column a domain.", "free")
    row(44, "", DOMAINS, "free strong")
    drawing.text(right, 44, "examples", "free small end")
    for k, counts in enumerate(EXAMPLES):
        y = 54 + 34 * k
        drawing.box((_MARGIN, y, inner), "step", [f"Client {k + 1}"], height=28)
        drawing.text(right, y + 18, str(sum(counts)), "on-step end")
        for x, number, kind in zip(middles, counts, KINDS):
            drawing.dots(x, y + 14, number, kind)
    row(242, "Examples", [str(sum(column)) for column in zip(*EXAMPLES)], "free")
    row(264, "Loss", [f"{loss:.2f}" for loss in LOSSES], "free")
    drawing.text(right, 242, str(sum(map(sum, EXAMPLES))), "free end")
    worst = [float(loss == max(LOSSES)) for loss in LOSSES]
    for top, name, weights, kind in (
        (280, "FedAvg weighs domains by examples", shares(), "server"),
        (356, "The worst mixture for this model", worst, "client"),
    ):
        drawing.box((_MARGIN, top, inner), kind, [], height=68)
        drawing.text(_MARGIN + 9, top + 23, name, f"on-{kind} strong")
        row(top + 50, "Weight", [f"{weight:.2f}" for weight in weights], f"on-{kind}")
        drawing.text(right, top + 38, "mean loss", f"on-{kind} small end")
        drawing.text(right, top + 55, f"{mean_loss(weights):.2f}", f"on-{kind} strong end")
    return drawing


# Title; what clients send, what the server sees and what the model is made of, each with its kind.
_SEEN: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    ("Plain sums", (("3, 1, 2", "client"), ("3, 1, 2", "client"), ("6", "server"))),
    ("Secure aggregation", (("masked", "step"), ("6", "server"), ("6", "server"))),
    (
        "Central privacy, plain sums",
        (("3, 1, 2", "client"), ("3, 1, 2", "client"), ("6 + noise", "safe")),
    ),
    (
        "Central privacy, secure aggregation",
        (("masked", "step"), ("6", "server"), ("6 + noise", "safe")),
    ),
    (
        "Distributed privacy, secure aggregation",
        (("masked, noisy", "step"), ("6 + noise", "safe"), ("6 + noise", "safe")),
    ),
)


def what_the_server_sees() -> Drawing:
    """Values of three clients, and who sees what of them."""
    high = 70
    drawing = Drawing("What the server sees of three clients' values", 420)
    lefts = (_MARGIN, 138, 266)
    for left, name in zip(lefts, ("clients send", "server sees", "model is made of")):
        drawing.text(left, 18, name, "free")
    for k, (title, cells) in enumerate(_SEEN):
        top = 28 + high * k
        drawing.text(_MARGIN, top + 16, title, "free strong")
        for left, (line, kind) in zip(lefts, cells):
            drawing.box((left, top + 25, 104), kind, [line], "middle")
        for left in lefts[:2]:
            drawing.arrow((left + 104, top + 39), (left + 126, top + 39))
    legend = (("client", "each client"), ("server", "exact sum"), ("safe", "noisy sum"))
    for left, (kind, name) in zip(lefts, legend):
        drawing.dots(left + 6, 396, 1, kind)
        drawing.text(left + 17, 400, name, "free")
    return drawing


def from_table_to_fleet() -> Drawing:
    """Files and the commands between them."""
    drawing = Drawing("From a CSV to a report, a model and a fleet: files and commands", 462)
    left, right, wide = _MARGIN, 196, 174
    x, y = left + 24, right + 24

    def step(at: float, top: float, command: str, bottom: float) -> None:
        drawing.arrow((at, top), (at, bottom))
        drawing.text(at + 9, (top + bottom) / 2 + 3, command, "free code")

    drawing.box((left, 6, wide), "client", ["shop.csv:", "your table"])
    drawing.box((right, 6, wide), "client", ["my_model.py:", "a Keras model"])
    step(x, 51, "./run import_data", 87)
    drawing.box((left, 88, wide), "step", ["shop.sqlite:", "clients and domains"])
    step(x, 133, "./run train", 169)
    drawing.arrow((right + 140, 51), (right + 140, 151), (x + 130, 151), (x + 130, 169))
    drawing.arrow((right + 140, 151), (right + 140, 169))
    drawing.arrow((left + wide, 110), (y, 110), (y, 169))
    drawing.text(y + 9, 142, "./run compare", "free code")
    run = ["A run:", "report.html", "model/model.keras", "checkpoints/"]
    end = drawing.box((left, 170, wide), "server", run)
    comparison = ["A comparison:", "report.html", "tables, plots", "a run for each trial"]
    drawing.box((right, 170, wide), "server", comparison)
    step(x, end, "./run save_model", end + 50)
    model = ["The model:", "Keras, SavedModel,", "TensorFlow Lite"]
    drawing.box((left, end + 51, wide), "safe", model)
    middle = left + wide - 20
    drawing.arrow((middle, end), (middle, end + 18), (y, end + 18), (y, end + 50))
    drawing.text(y + 9, end + 38, "./run export", "free code")
    drawing.box((right, end + 51, wide), "safe", ["A plan:", "for a fleet, or", "./run run_plan"])
    step(y, end + 113, "./run fleet", end + 147)
    fleet = ["Trained on a fleet:", "server_state.ckpt"]
    drawing.box((right, end + 148, wide), "server", fleet)
    drawing.arrow((right, end + 170), (left + 30, end + 170), (left + 30, end + 140))
    drawing.text(left + 40, end + 160, "./run import_state", "free code")
    drawing.text(left, end + 132, "a run again", "free small")
    return drawing


def which_training() -> Drawing:
    """A way from the data to an algorithm."""
    drawing = Drawing("Which training to choose: four questions", 432)
    left, right = _MARGIN, 226
    questions = (
        ("Does each example|have a domain?", "no", "For the worst|clients: Delta-FL.|Else: FedAvg"),
        (
            "Does any mixture help|the worst domain?|$ ./run frontier",
            "no",
            "FedAvg, or|another model",
        ),
        ("Would more examples|of it help?", "no: hard", "Excess losses,|or equal weights"),
    )
    top = 6.0
    for question, answer, choice in questions:
        end = drawing.box((left, top, 178), "step", question.split("|"), height=68)
        drawing.arrow((left + 178, top + 34), (right - 1, top + 34))
        drawing.text(left + 190, top + 26, answer.partition(":")[0], "free")
        drawing.box((right, top, WIDTH - right - _MARGIN), "server", choice.split("|"), height=68)
        drawing.arrow((left + 40, end), (left + 40, end + 29))
        yes = "yes: it is rare" if ":" in answer else "yes"
        drawing.text(left + 52, end + 19, yes, "free")
        if ":" in answer:
            drawing.text(right, end + 19, "it is hard", "free")
        top = end + 30
    end = drawing.box((left, top, 178), "server", ["AgnosticFedAvg"], height=30)
    drawing.arrow((left + 40, end), (left + 40, end + 25))
    last = ["Compare with FedAvg:", "$ ./run compare", "Is the gain worth what the others pay?"]
    drawing.box((left, end + 26, WIDTH - 2 * _MARGIN), "safe", last)
    return drawing


FIGURES: Mapping[str, Callable[[], Drawing]] = {
    "round": a_round,
    "clients_by_domains": clients_by_domains,
    "what_the_server_sees": what_the_server_sees,
    "from_table_to_fleet": from_table_to_fleet,
    "which_training": which_training,
}


def main() -> int:
    """Writes the figures, or checks them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    is_check = parser.parse_args().check
    status = 0
    for name, draw in FIGURES.items():
        path, text = _FOLDER / f"{name}.svg", draw().svg()
        where = path.relative_to(_ROOT)
        if not is_check:
            path.write_text(text, encoding="utf-8")
            print(where)
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{where} is out of date: tools/draw_concepts.py draws it", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
