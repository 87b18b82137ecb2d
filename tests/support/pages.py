"""Made-up run folders, and a reader of their pages, without TensorFlow."""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_agnostic.program.options.tasks import FORMAT

MEASURES = {
    "loss": {"unit": "none", "higher_is_better": False},
    "accuracy": {"unit": "share", "higher_is_better": True},
    "perplexity": {"unit": "factor", "higher_is_better": False},
}
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
# Names that pages escape.
AWKWARD = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    'a & b\'s "c" </td>',
    "العربية",
    "日本語",
    "\u202eevil",
    "e\nf\tg",
    "\x08\x00",
    "\ud800",
    "{{ 7 * 7 }} {% raw %}",
    "a/b~c#d",
    "x" * 300,
    "$x^$",
    "_hidden",
    " ",
)


def result(domains: Sequence[str], seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Returns the result.json of a run; `changes` replace its entries."""
    rng = np.random.default_rng(seed)
    sets = {name: one_set(rng, int(rng.integers(20, 400))) for name in domains}
    total = one_set(rng, sum(one["num_examples"] for one in sets.values()))

    def worst_value(name: str) -> str:
        worst = min if MEASURES[name]["higher_is_better"] else max
        return worst(sets, key=lambda domain: sets[domain][name])

    worst = {name: worst_value(name) for name in MEASURES}
    weights = rng.dirichlet(np.ones(len(domains)))
    content = {
        "task": "made_up",
        "algorithm": "agnostic_fed_avg",
        "runtime": "cohort",
        "seed": seed,
        "rounds": 20,
        "split": "test",
        "percentiles": "interpolated",
        "superquantile_share": 0.1,
        "interval_level": 0.95,
        "domains": sets,
        "overall": total,
        "worst_domain": worst["loss"],
        "worst": {m: {"domain": d, "value": sets[d][m]} for m, d in worst.items()},
        "difference": {m: float(rng.random()) for m in MEASURES},
        "worst_min_examples": 10,
        "not_counted": [],
        "clients": {"evaluated": 30, "empty": 0, "non_finite": 0},
        "client_values": {m: client_values(rng) for m in MEASURES},
        "domain_weights": dict(zip(domains, weights.tolist())),
        "about": about(domains),
    }
    return {**content, **changes}


def two_classes(domains: Sequence[str]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    tables = {name: rng.integers(1, 9, size=(2, 2)).tolist() for name in domains}
    return {
        "class_counts": {name: list(map(sum, table)) for name, table in tables.items()},
        "confusion": tables,
    }


def many_classes(domains: Sequence[str]) -> dict[str, Any]:
    """Returns the class counts in result.json of a model with 30 classes."""
    right = np.random.default_rng(0).integers(0, 9, size=30)
    counts = {"examples": right + 2, "answers": right + 1, "right_answers": right}
    by_class = {key: values.tolist() for key, values in counts.items()}
    return {
        "class_counts": {name: by_class["examples"] for name in domains},
        "answers_by_class": {name: by_class for name in domains},
    }


def one_set(rng: np.random.Generator, num_examples: int) -> dict[str, Any]:
    """Returns a domain's entry in result.json."""
    values = {"loss": rng.random() * 3, "accuracy": rng.random(), "perplexity": rng.random() * 99}
    over_clients = {
        m: {"num_clients": 12, "mean": v, "p10": v / 2, "p90": v, "superquantile": v * 0.9}
        for m, v in values.items()
    }
    intervals = {
        m: {"value": [v * 0.9, v * 1.1] if m == "accuracy" else None, "mean": [v / 2, v * 1.5]}
        for m, v in values.items()
    }
    return {
        "num_examples": num_examples,
        **values,
        "over_clients": over_clients,
        "intervals": intervals,
    }


def client_values(rng: np.random.Generator) -> dict[str, Any]:
    """Returns a measure's entry of `client_values` in result.json, with None for infinity."""
    values = [*np.sort(rng.random(5)).round(3).tolist(), None]
    return {
        "histogram": {"value": values, "clients": [3, 4, 5, 6, 7, 5]},
        "by_size": {"examples": [4, 16], "clients": [10, 20], "mean": [0.5, None]},
    }


def about(domains: Sequence[str], **changes: Any) -> dict[str, Any]:
    """Returns the entry `about` of result.json; `changes` replace its entries."""

    def quantity(name: str, **more: Any) -> dict[str, Any]:
        usual = {"per_domain": True, "unit": "none", "higher_is_better": False, "role": "none"}
        return {"name": name, "label": f"{name}, drawn", **usual, "is_drawn": True, **more}

    counts = {name: {"clients": 5, "examples": 500} for name in domains}
    content = {
        "task": {"summary": "nothing that anybody does"},
        "algorithm": {"label": "AgnosticFedAvg", "paper": "Ro et al. 2021"},
        "model": {"parameters": 650, "inputs": "float32[None, 64]", "classes": ["no", "<yes>"]},
        "measures": MEASURES,
        "quantities": [
            quantity("test/loss"),
            quantity("lambda", role="domain_weight", higher_is_better=None),
            quantity("clipped/sums", unit="values", per_domain=False, is_drawn=False),
        ],
        "data": {
            "train": {"clients": 40, "domains": counts},
            "evaluated": {"clients": 30, "domains": counts},
        },
        "remarks": [],
        "security": None,
        "rounds_skipped": 0,
        "versions": {"python": "3.11"},
    }
    return {**content, **changes}


PRIVACY = {
    "epsilon": 2.5,
    "delta": 1e-5,
    "rounds": 20,
    "noise_multiplier": 1.25,
    "split": {"update": 1.5, "<b>losses": 4.0},
    "adjacency": "one client more or less",
    "sampling": "clients are drawn each by itself",
    "accountant": "pld",
    "library": "dp_accounting 0.4.4",
    "unit": "client",
    "not_covered": ["evaluations", "<i>tuning"],
    "remarks": ["counts are exact"],
}


def write_run(
    folder: Path,
    content: Mapping[str, Any],
    columns: Optional[Mapping[str, Sequence[float]]] = None,
    **config: Any,
) -> Path:
    """Writes a run folder with this result.json, and with `config` in config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(content))
    settings = {"format": FORMAT, "task": content["task"], "rounds": content.get("rounds")}
    usual = {"clients_per_round": 10, "aggregation": "plain", "privacy": "none"}
    settings = {**settings, **usual, **config}
    (folder / "config.json").write_text(json.dumps(settings))
    rounds = content["rounds"]
    values: dict[str, Sequence[float]] = {"round": range(1, rounds + 1)}
    for i, name in enumerate(content["domains"]):
        values[f"test/loss/{name}"] = [math.nan, *np.linspace(2, i / 9, rounds - 1)]
        values[f"lambda/{name}"] = np.full(rounds, 1 / len(content["domains"])).tolist()
    values.update(columns or {})
    with open(folder / "metrics.csv", "w", newline="", encoding="utf-8", errors="replace") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(values)
        for row in zip(*values.values()):
            table.writerow(["" if math.isnan(cell) else cell for cell in row])
    return folder


class Datum(NamedTuple):
    """A number on a page: its text and its exact value."""

    text: str
    value: Optional[float]


class Reader(HTMLParser):
    """A page as a browser reads it.

    Attributes:
        data: Numbers of the <data> elements.
        names: Texts of the <bdi> elements, which isolate names.
        images: Sources of the <img> elements.
        text: All text except the style.
    """

    _VOID = ("meta", "img", "link", "br")

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.data: list[Datum] = []
        self.names: list[str] = []
        self.images: list[str] = []
        self.text = ""
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: set[str] = set()
        self._open: list[str] = []
        assert html.startswith("<!DOCTYPE html>\n<html")
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        assert len(values) == len(attrs)
        # The page has no scripts, and loads nothing from elsewhere.
        assert not any(name.startswith("on") for name in values)
        assert values.get("src", "data:").startswith("data:")
        # Links lead to places on the same page.
        assert values.get("href", "#").startswith("#")
        assert tag not in ("script", "iframe", "object", "form", "base")
        self.elements.add(tag)
        if tag not in self._VOID:
            self._open.append(tag)
        if tag == "data":
            value = float(values["value"]) if values["value"] else None
            self.data.append(Datum("", value))
        elif tag == "bdi":
            self.names.append("")
        elif tag == "img":
            self.images.append(values["src"])
            assert values["alt"]
        self.ids += [values["id"]] if "id" in values else []
        href = values.get("href", "")
        self.links += [href[1:]] if href.startswith("#") else []

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data
        if "data" in self._open:
            self.data[-1] = self.data[-1]._replace(text=self.data[-1].text + data)
        if "bdi" in self._open:
            self.names[-1] += data


def page_blocks(folder: Path) -> list[Any]:
    sections = json.loads((folder / "page.json").read_text())["sections"]
    return [block for section in sections for block in section["blocks"]]


def all_numbers(content: Any) -> set[float]:
    """Returns all numbers of a JSON value, also those within its strings."""
    if isinstance(content, dict):
        return set().union(*map(all_numbers, content.values()))
    if isinstance(content, list):
        return set().union(*map(all_numbers, content))
    if isinstance(content, str):
        return {float(number) for number in _NUMBERS.findall(content)}
    return {float(content)} if isinstance(content, (int, float)) else set()


def reads_as(datum: Datum) -> bool:
    """Whether a number's text shows its value, rounded, as a number or in percent."""
    if datum.value is None:
        return datum.text == "-"
    # A standard deviation or an interval may follow.
    text = datum.text.split(" ")[0]
    decimals, shown = len(text.partition(".")[2]), float(text)
    half = 0.5000001 * 10.0**-decimals if "e" not in text else 0.001 * abs(datum.value)
    return any(abs(shown - scale * datum.value) <= half for scale in (1, 100))
