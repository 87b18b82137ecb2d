"""report.html of a run, after model cards (Mitchell et al. 2019)."""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.metrics.class_counts import (
    ACCURACY,
    BY_CLASS,
    CLASS_COUNTS,
    CONFUSION,
    GET,
    HAVE,
    RIGHT,
    constant_accuracies,
)
from tff_agnostic.metrics.evaluation_report import client_values_from_json
from tff_agnostic.metrics.formatting import capitalized, with_percent
from tff_agnostic.metrics.intervals import MIN_CLIENTS
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.distributions import (
    Estimate,
    Series,
    client_figure,
    domain_figure,
    worst_first,
)
from tff_agnostic.program.reports.document import (
    Block,
    Cell,
    Figure,
    Number,
    Page,
    Section,
    Sentences,
    Table,
    names,
    text,
    warnings,
)
from tff_agnostic.program.reports.figures import Values, figure_of
from tff_agnostic.program.reports.html import chosen_title, write_page
from tff_agnostic.program.reports.run_record import (
    RESULT,
    RunRecord,
    metrics_first,
    number,
    read_run,
    weight_quantity,
)
from tff_agnostic.program.reports.run_verdict import run_verdict
from tff_agnostic.program.reports.run_warnings import caveats, harm

_MAX_CLASSES = 20
# Keys of config.json that are not settings.
NOT_FLAGS = ("format", "execution")
_PLAIN = "plain"
# The folders of a path in an argument, which may hold several: "--arms=mine=/home/me/a.py:q=1;...".
_FOLDERS = re.compile(r"(?<![^=,;:])/(?:[^/,;:=]+/)*(?=[^/,;:=])")
# Noise of clients instead of the server's.
_DISTRIBUTED = "distributed"
_ALL = "all"
TAIL = "CVaR (worst 10% of clients)"
_NUM_CLIENTS = "num_clients"
_STATISTICS = {"superquantile": TAIL}
# Points of a curve, and of all curves of a figure, which keep pages small.
_MAX_POINTS, _MIN_POINTS = 300, 20
_FIGURE_POINTS = 3000
# Domains in the table of weights.
_MAX_WEIGHTS = 10
# Maximum number of classes of a domain, those with most wrong answers.
_DOMAIN_CLASSES = 5


def run_page(
    run: RunRecord, command: Optional[Sequence[str]] = None, title: Optional[str] = None
) -> Page:
    """Returns the page.

    Args:
        command: Command that trains the run again; None if it is unknown.
        title: Heading; by default the algorithm and the task.
    """
    return Page(
        title or default_title(run),
        "A report of one run, laid out after model cards (Mitchell et al. 2019); seed "
        f"{run.get('seed')}, {run.get('rounds')} rounds.",
        [
            Section("The verdict", text(run_verdict(run))),
            Section("In short", _summary(run)),
            Section("What to know first", warnings(caveats(run))),
            Section("The model", [_model(run)]),
            Section("The data", data_blocks(run, run.is_private), is_folded=True),
            Section("What was measured", [measure_facts(run), _intervals(run)], is_folded=True),
            Section("Results by domain", _domains(run)),
            Section("Confusion matrix", _classes(run), is_folded=True),
            Section("The tail of the clients", _tail(run), is_folded=True),
            Section("The models of the family", _family(run)),
            Section("The course of training", _course(run), is_folded=True),
            Section("Weights of the domains", _weights(run), is_folded=True),
            Section("What the server saw", server_blocks(run), is_folded=True),
            Section("How to make it again", _reproduction(run, command), is_folded=True),
        ],
    )


def default_title(run: RunRecord) -> str:
    """Returns the title of a run's page without a given one."""
    return f"{run.label} on {run.result['task']}"


def write_run_report(
    folder: Path, command: Optional[Sequence[str]] = None, title: Optional[str] = None
) -> Path:
    """Writes the report of the complete run in a folder, and returns its path.

    Args:
        command: Command that trains the run again; None if it is unknown.
    """
    run = read_run(folder)
    heading = chosen_title(folder, title, default_title(run))
    try:
        page = run_page(run, command, heading)
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise UserError(f"{folder / RESULT}: expected the result of a run, found: {e}") from e
    return write_page(folder, page)


@contextmanager
def with_results_kept(folder: Path) -> Iterator[None]:
    """Adds to the error of a report that the results are complete."""
    try:
        yield
    except UserError as e:
        raise UserError(
            f"{e}; the results in {folder} are complete, and ./run report --run={folder} writes "
            "the report once that is fixed"
        ) from e


# --- Sections of a run alone


def _summary(run: RunRecord) -> list[Block]:
    """Returns the numbers that a reader looks for first."""
    rows: list[Sequence[Cell]] = []
    for measure in metrics_first(run.measures):
        name, unit = measure.name, measure.unit
        worst = run.get("worst", name, "domain")
        rows.append(
            [
                with_percent(name, unit),
                _worst_value(run, measure),
                worst or "-",
                run.number("overall", name, unit=unit),
                run.number("difference", name, unit=unit),
                run.number("overall", "over_clients", name, "superquantile", unit=unit),
            ]
        )
    headings = ["", "worst domain", "its name", "all examples", "best - worst", TAIL]
    blocks = [*warnings(harm(run)), Table(f"On the {_split(run)} clients", headings, rows)]
    private = run.get("privacy")
    if private:
        epsilon = private.get("epsilon")
        shown = "infinite" if epsilon is None else f"{epsilon:.4g}"
        blocks += text(
            [
                f"Training is ({shown}, {private['delta']:.3g})-differentially private for each "
                f"{private['unit']}."
            ]
        )
    return blocks


def _split(run: RunRecord) -> str:
    return split_name(run.split)


def _worst_value(run: RunRecord, measure: Measure) -> Number:
    domain = run.get("worst", measure.name, "domain")
    if domain is None:
        return run.number("worst", measure.name, "value", unit=measure.unit)
    return run.measured(measure, "domains", domain)


def _model(run: RunRecord) -> Table:
    """Returns the model and its training ("Model Details")."""
    summary, paper = run.about("task", "summary"), run.about("algorithm", "paper")
    rows: list[Sequence[Cell]] = [
        ("Task", f"{run.result['task']}: {summary}" if summary else str(run.result["task"])),
        ("Algorithm", f"{run.label} ({paper})" if paper else run.label),
        ("Rounds", run.number("rounds")),
        ("Clients in a round", str(run.config.get("clients_per_round", "-"))),
        ("Seed", run.number("seed")),
        ("Parameters", number(run.about("model", "parameters"))),
        ("Inputs of an example", _inputs(run.about("model", "inputs"))),
    ]
    return Table("", (), rows)


def _inputs(inputs: object) -> str:
    if isinstance(inputs, dict):
        return ", ".join(f"{name}: {_inputs(shape)}" for name, shape in inputs.items())
    return str(inputs)


def _intervals(run: RunRecord) -> Sentences:
    return Sentences(
        [
            f"Numbers in brackets are {run.result['interval_level']:.0%} confidence intervals over "
            "clients like the evaluated ones. They do not cover other seeds, which several trials "
            "do (./run compare).",
            "The interval of a share of examples treats examples as independent. The examples of a "
            "client are mostly similar, and then it is too narrow: the interval of the mean over "
            "clients includes how clients differ.",
            "The worst of several uncertain numbers looks worse than it is.",
        ]
    )


def _domains(run: RunRecord) -> list[Block]:
    """Returns the numbers of every domain, the worst first ("Quantitative Analyses")."""
    blocks: list[Block] = []
    for measure in metrics_first(run.measures):
        series = domain_series(run, measure)
        draw = functools.partial(
            domain_figure,
            [series],
            f"{measure.name} on the {_split(run)} clients",
            measure.unit,
            measure.higher_is_better,
            run.result.get("not_counted") or (),
        )
        caption = (
            f"{measure.name} of every domain, the worst on top; the dashed line is that of all "
            "examples, error bars are the intervals of the table"
        )
        blocks += [_domain_table(run, measure, series), Figure(caption, draw)]
    return blocks


def domain_series(run: RunRecord, measure: Measure) -> Series:
    """Returns a measure of every domain with its interval."""

    def estimate(name: str) -> Estimate:
        value = run.measured(measure, "domains", name)
        low, high = (_float(end) for end in value.interval or (None, None))
        return Estimate(_float(value.value), low, high)

    overall = _float(run.get("overall", measure.name))
    return Series(run.label, {name: estimate(name) for name in run.domains}, overall)


def _domain_table(run: RunRecord, measure: Measure, series: Series) -> Table:
    name, unit = measure.name, measure.unit
    not_counted = run.result.get("not_counted") or ()
    status = dict.fromkeys(not_counted, "not counted")
    status[run.get("worst", name, "domain")] = "worst"
    counts = run.result.get(CLASS_COUNTS) or {} if name == ACCURACY else {}
    total = {_ALL: np.sum([*counts.values()], axis=0).tolist()} if counts else {}
    constants = constant_accuracies({**counts, **total})
    has_weights = bool(run.get("domain_weights"))

    def row(label: str, *group: str) -> list[Cell]:
        weight: Cell = ""
        if label != _ALL:
            weight = run.number("domain_weights", label, decimals=3)
        return [
            label,
            run.measured(measure, *group),
            run.number(*group, "num_examples"),
            run.number(*group, "over_clients", name, _NUM_CLIENTS),
            *([weight] if has_weights else []),
            *([number(constants.get(label), unit)] if constants else []),
            status.get(label, ""),
        ]

    ordered = worst_first([series], measure.higher_is_better)
    rows = [*(row(domain, "domains", domain) for domain in ordered), row(_ALL, "overall")]
    headings, notes = ["domain", name, "examples", "clients"], []
    if has_weights:
        headings.append("weight")
        notes.append("Weight: the domain's weight in the last round.")
    if constants:
        headings.append("most frequent class")
        notes.append("Most frequent class: accuracy of always answering a domain's own one.")
    clients = (run.get("domains", n, "over_clients", name, _NUM_CLIENTS) for n in run.domains)
    if unit is Unit.SHARE and any(count and count < MIN_CLIENTS for count in clients):
        notes.append(f"Without an interval: fewer than {MIN_CLIENTS} {_split(run)} clients.")
    if not_counted:
        limit = run.result.get("worst_min_examples")
        notes.append(
            f"Not counted in worst and best: domains with fewer than {limit} {_split(run)} "
            "examples (--worst_min_examples)."
        )
    caption = f"{with_percent(name, unit)} ({measure.better} is better)"
    return Table(caption, [*headings, ""], rows, notes)


def _tail(run: RunRecord) -> list[Block]:
    """Returns the distribution of each measure over the clients."""
    blocks: list[Block] = []
    sets = [*((n, ("domains", n)) for n in run.domains), (_ALL, ("overall",))]
    models = {run.label: run.result, **(run.result.get("models") or {})}
    for measure in metrics_first(run.measures):
        name = measure.name
        reported = run.get("overall", "over_clients", name) or {}
        statistics = [key for key in reported if key != _NUM_CLIENTS]
        rows: list[Sequence[Cell]] = [
            [
                label,
                run.number(*group, "over_clients", name, _NUM_CLIENTS),
                *(run.measured(measure, *group, statistic=s) for s in statistics),
            ]
            for label, group in sets
        ]
        headings = ["domain", "clients", *(_STATISTICS.get(s, s) for s in statistics)]
        caption = f"{with_percent(name, measure.unit)} over the {_split(run)} clients"
        blocks.append(Table(caption, headings, rows))
        values = {
            label: [client_values_from_json(content["client_values"][name])]
            for label, content in models.items()
            if name in content.get("client_values", {})
        }
        if values:
            draw = functools.partial(client_figure, name, measure.unit, values, _split(run))
            caption = (
                f"{name}: the share of the clients with a value up to that, and the mean of the "
                "clients by their number of examples"
            )
            blocks.append(Figure(caption, draw))
    return blocks


def _classes(run: RunRecord) -> list[Block]:
    """Returns the counts of answers by class, the worst domain first; nothing if not counted."""
    confusion, by_class = run.result.get(CONFUSION), run.result.get(BY_CLASS)
    evaluated = [name for name in run.domains if run.get("domains", name, "num_examples")]

    def accuracy(name: str) -> float:
        value = run.get("domains", name, ACCURACY)
        # Undefined accuracies are last.
        return math.inf if value is None else value

    ordered = sorted(evaluated, key=accuracy)
    blocks: list[Block] = []
    if confusion:
        blocks.append(_confusion_table(run, confusion, ordered))
    elif by_class:
        blocks.append(_class_table(run, by_class, ordered))
    if blocks and run.get("privacy", "evaluation"):
        blocks += text(["All counts have the noise of the evaluation; none is below 0."])
    return blocks


def _class_names(run: RunRecord, count: int) -> list[str]:
    classes = run.about("model", "classes")
    is_known = isinstance(classes, list) and len(classes) == count
    return list(map(str, classes if is_known else range(count)))


def _ratio(part: float, whole: float) -> Number:
    return Number(part / whole if whole else None, Unit.SHARE)


def _confusion_table(run: RunRecord, tables: Mapping[str, Any], ordered: Sequence[str]) -> Table:
    classes = _class_names(run, len(next(iter(tables.values()))))
    rows: list[Sequence[Cell]] = [
        [f"{name}, {classes[i]}", *map(number, counts), _ratio(counts[i], sum(counts))]
        for name in ordered
        for i, counts in enumerate(tables[name])
        if sum(counts)
    ]
    return Table(
        "Confusion matrix of each domain, the worst domain first",
        ["domain, class", *classes, "right, %"],
        rows,
        [
            f"Rows are classes of a domain's {_split(run)} examples, columns the model's answers; "
            "right: the share of the row whose answer is its class."
        ],
    )


def _class_table(run: RunRecord, by_class: Mapping[str, Any], ordered: Sequence[str]) -> Table:
    classes = _class_names(run, len(next(iter(by_class.values()))[HAVE]))
    rows: list[Sequence[Cell]] = []
    for name in ordered:
        counts = by_class[name]
        wrong = np.subtract(counts[HAVE], counts[RIGHT])
        order = [i for i in np.argsort(-wrong, kind="stable").tolist() if wrong[i] > 0]
        for i in order[:_DOMAIN_CLASSES]:
            have, get, right = (counts[key][i] for key in (HAVE, GET, RIGHT))
            shares = (_ratio(right, have), _ratio(right, get))
            rows.append([f"{name}, {classes[i]}", *map(number, (have, get, right)), *shares])
    return Table(
        "Classes with most wrong answers, the worst domain first",
        ["domain, class", "examples", "answers", "right", "recall, %", "precision, %"],
        rows,
        [
            f"Of each domain the {_DOMAIN_CLASSES} classes with most wrong answers. Recall: the "
            "share of the class with the right answer; precision: the share of these answers that "
            f"are right. All classes are in result.json under {BY_CLASS}."
        ],
    )


def _family(run: RunRecord) -> list[Block]:
    """Returns the numbers of several models; nothing of a run with one model."""
    further: Mapping[str, Any] = run.result.get("models") or {}
    if not further:
        return []
    main = run.result["main_model"]
    models: dict[str, tuple[Any, ...]] = {main: (), **{n: ("models", n) for n in further}}
    blocks = text(
        [f"The run trained several models. The rest of this page is about the first one, {main}."]
    )
    for measure in metrics_first(run.measures):
        name = measure.name
        paths = {
            "worst domain": ("worst", name, "value"),
            "all examples": ("overall", name),
            "best - worst": ("difference", name),
            TAIL: ("overall", "over_clients", name, "superquantile"),
            **{domain: ("domains", domain, name) for domain in run.domains},
        }
        rows: list[list[Cell]] = [
            [model, *(run.number(*keys, *path, unit=measure.unit) for path in paths.values())]
            for model, keys in models.items()
        ]
        caption = f"{with_percent(name, measure.unit)}, of each model"
        blocks.append(Table(caption, ["", *paths], rows))
    return blocks


def _course(run: RunRecord) -> list[Block]:
    """Returns the curves of all drawn quantities."""
    drawn = [q for q in run.quantities if q.is_drawn and q.role is not Role.DOMAIN_WEIGHT]
    return [course_figure(run, quantity) for quantity in drawn if run.drawn(quantity)]


def _weights(run: RunRecord) -> list[Block]:
    """Returns the weights of the domains over the rounds: lambda, or shares of FedAvg's rounds."""
    quantity = weight_quantity(run)
    if quantity is None:
        return []
    courses = {}
    for column in run.drawn(quantity):
        values = run.columns[column.name]
        courses[column.domain or ""] = values[np.isfinite(values)]
    nonempty = {name: values for name, values in courses.items() if len(values)}
    rows: list[Sequence[Cell]] = []
    for name, values in sorted(nonempty.items(), key=lambda item: -item[1][-1]):
        statistics = (values[0], values.min(), values.mean(), values.max(), values[-1])
        rows.append([name, *(Number(float(value), decimals=3) for value in statistics)])
    headings = ["domain", "first round", "minimum", "mean", "maximum", "last round"]
    blocks: list[Block] = [
        *text(
            [
                f"{capitalized(quantity.label)}: {quantity.name} in metrics.csv. If one domain "
                "keeps all of the weight, training serves that domain alone."
            ]
        ),
        course_figure(run, quantity),
        Table("Over the rounds", headings, rows, max_rows=_MAX_WEIGHTS),
    ]
    loss = run.number("worst_mixture", "loss")
    if loss.value is not None:
        blocks.append(Table("", (), [("Loss of the worst mixture of the set", loss)]))
    return blocks


def course_figure(run: RunRecord, quantity: ReportField) -> Figure:
    """Returns the figure of a quantity over the rounds."""
    columns = run.drawn(quantity)

    def draw() -> matplotlib.figure.Figure:
        return figure_of(quantity, columns, thinned(columns, run.columns))

    return Figure(f"{quantity.label} over the rounds", draw)


def thinned(columns: Sequence[Column], values: Values) -> Values:
    """Returns evenly spaced rounds of a long run, among them the last one.

    Args:
        values: The columns of metrics.csv.
    """
    has_value = np.any([np.isfinite(values[column.name]) for column in columns], axis=0)
    (rounds,) = np.nonzero(has_value)
    limit = _FIGURE_POINTS // max(1, len(columns))
    limit = min(max(limit, _MIN_POINTS), _MAX_POINTS)
    if len(rounds) > limit:
        rounds = rounds[np.linspace(0, len(rounds) - 1, limit).round().astype(int)]
    return {name: values[name][rounds] for name in (ROUND, *(c.name for c in columns))}


def _reproduction(run: RunRecord, command: Optional[Sequence[str]]) -> list[Block]:
    """Returns all that is needed to train the same model again."""
    settings = {f"--{n}": v for n, v in run.config.items() if n not in NOT_FLAGS}
    execution = run.config.get("execution") or {}
    return [
        *command_blocks(command, run.is_private),
        *_facts("Digests of its files and code:", run.fingerprint),
        *versions_blocks(run),
        *_facts("All settings (config.json):", settings),
        *_facts("Execution of the rounds, which can change last bits:", execution),
    ]


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


# --- Sections that pages of studies have as well


def data_blocks(run: RunRecord, is_private: bool) -> list[Block]:
    """Returns clients and examples of each domain ("Training Data", "Evaluation Data").

    Args:
        run: A run on the data.
        is_private: Whether any model of the page was trained on them with differential privacy.
    """
    splits = {"train": "training", "evaluated": _split(run)}
    counts = {split: run.about("data", split, "domains") for split in splits}
    totals = {
        split: sum(domain["examples"] for domain in domains.values()) if domains else None
        for split, domains in counts.items()
    }

    def domain_cells(split: str, name: str) -> list[Cell]:
        domain, total = (counts[split] or {}).get(name, {}), totals[split]
        share = domain["examples"] / total if total else None
        numbers: list[Cell] = [number(domain.get(key)) for key in ("clients", "examples")]
        return [*numbers, Number(share, Unit.SHARE, 3)]

    rows: list[Sequence[Cell]] = [
        [name, *(part for split in splits for part in domain_cells(split, name))]
        for name in run.domains
    ]
    in_all: list[Cell] = ["in all"]
    for split in splits:
        in_all += [number(run.about("data", split, "clients")), number(totals[split]), ""]
    headings = ["domain"]
    for what in splits.values():
        headings += [f"{what} clients", f"{what} examples", "share, %"]
    notes = [
        f"Examples of the {what} clients were not counted: {_reason(run, split)}."
        for split, what in splits.items()
        if counts[split] is None
    ]
    notes.append("A client may have examples of several domains.")
    if is_private and any(counts.values()):
        notes.append("These counts are exact: no epsilon covers them.")
    return [Table("Clients and examples of each domain", headings, [*rows, in_all], notes)]


def _reason(run: RunRecord, split: str) -> str:
    """Returns the reason why the examples of a split were not counted."""
    guarantee = run.get("privacy", "evaluation") if split == "evaluated" else run.is_private
    return "the run is private" if guarantee else "all of them would have to be read"


def measure_facts(run: RunRecord) -> Table:
    """Returns a description of each measure."""
    rows: list[Sequence[Cell]] = [
        (measure.name, with_percent(f"{measure.better} is better", measure.unit, "in percent"))
        for measure in metrics_first(run.measures)
    ]
    share = run.result["superquantile_share"]
    rows.append((TAIL, f"the mean of the worst {share:.0%} of the clients, each counted once"))
    classes = run.about("model", "classes")
    if classes:
        rows.append(("Classes", f"{len(classes)}: {names(list(map(str, classes)), _MAX_CLASSES)}"))
    return Table("", (), rows)


def command_blocks(command: Optional[Sequence[str]], is_private: bool) -> list[Block]:
    """Returns a command and its conditions.

    Args:
        command: Arguments of the command; None if they are unknown.
        is_private: Whether the noise of the training is secret.
    """
    if not command:
        return text(["The command is not known here; all settings are below."])
    but = ", except for the noise and the cohorts of private training, which are secret"
    conditions = (
        "Files are named without their folders. Equal settings, data and versions give equal "
        f"numbers{but if is_private else ''}."
    )
    return [Sentences([shlex.join(command)], "command"), Sentences([conditions])]


def typed_blocks(command: str) -> list[Block]:
    """Returns a typed command without the folders of files."""
    parts = [_FOLDERS.sub("", part) for part in shlex.split(command)]
    line = Sentences([shlex.join(parts)], "command")
    return [line, Sentences(["Files are named without their folders."])]


def versions_blocks(run: RunRecord) -> list[Block]:
    """Returns the versions of the software; nothing if they were not recorded."""
    return _facts("Versions:", run.about("versions") or {})


def _facts(title: str, values: Mapping[str, Any]) -> list[Block]:
    if not values:
        return []
    rows: list[Sequence[Cell]] = [(name, setting_value(value)) for name, value in values.items()]
    return [Table(title, (), rows)]


def setting_value(value: Any) -> str:
    """Returns the value of a setting as text; of files the names alone."""
    if value is None:
        return "not given"
    if isinstance(value, list):
        return ",".join(str(_without_folder(item)) for item in value)
    return _without_folder(value) if isinstance(value, str) else json.dumps(value)


def _without_folder(value: Any) -> Any:
    # Readers of a page need not know the folders of its author.
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def server_blocks(run: RunRecord) -> list[Block]:
    """Returns the values that reached the server, and the guarantees about them."""
    return [*_sums(run), *_privacy(run)]


def _sums(run: RunRecord) -> list[Block]:
    if run.config.get("pooled"):
        return text(["No federated training: the examples of all clients were in one place."])
    if run.config.get("aggregation", _PLAIN) == _PLAIN:
        return text(
            [
                "Plain sums: training and evaluation use sums over clients only, but the server "
                "that adds them up can see each client's values. Models, losses, counts and "
                "metrics of a client are readable to the server."
            ]
        )
    security: Mapping[str, Any] = run.about("security")
    plain = security["plain"]
    others = f"{len(plain)} in plain ones: {', '.join(plain)}." if plain else "none in others."
    lines = [
        f"Secure sums: {len(security['secure'])} values of a client reach the server in secure "
        f"sums, {others}",
        "It is a simulation: the integers are those of a secure-sum protocol, added up in the "
        "clear.",
    ]
    min_clients = run.config.get("secure_min_clients")
    if run.config.get("privacy") == _DISTRIBUTED:
        lines.append(
            "Clients add noise before their integers are summed: the server sees no exact sum of "
            "the training, and no sum of too few clients. Sums of evaluations are exact."
        )
        return text(lines)
    if min_clients is not None:
        limit = counted(min_clients, "client")
        lines.append(f"A sum is of at least {limit}; smaller cohorts are refused.")
    lines.append(
        "Sums are exact: they do not hide the number of examples of each domain, the values of a "
        "domain that one client of a cohort holds alone, and the difference of two sums."
    )
    return text(lines)


def _privacy(run: RunRecord) -> list[Block]:
    guarantee = run.get("privacy")
    if not guarantee:
        return text(
            [
                "No differential privacy: the model may have memorised something of single "
                "clients, and nothing bounds how much."
            ]
        )
    epsilon = run.number("privacy", "epsilon")
    rows: list[Sequence[Cell]] = [
        ("Epsilon", epsilon if epsilon.value is not None else "infinite: there is no noise"),
        ("Delta", f"{guarantee['delta']:.3g}"),
        ("Protected unit", str(guarantee["unit"])),
        ("After rounds", run.number("privacy", "rounds")),
        ("Neighbours", str(guarantee["adjacency"])),
        ("Assumed sampling", str(guarantee["sampling"])),
        ("Noise multiplier", run.number("privacy", "noise_multiplier")),
        *((f"of {n}", run.number("privacy", "split", n)) for n in guarantee["split"]),
        ("Accountant", f"{guarantee['accountant']}, {guarantee['library']}"),
        ("Kind of noise", str(run.config.get("privacy"))),
    ]
    if guarantee.get("noise_generator"):
        rows.append(("Noise generator", str(guarantee["noise_generator"])))
    if "noise_tail" in guarantee:
        rows.append(("Probability beyond its tail", f"{guarantee['noise_tail']:.3g}"))
    blocks: list[Block] = [
        Table("Differential privacy of training:", (), rows),
        Sentences(["It does not cover", *map(str, guarantee["not_covered"])]),
    ]
    if guarantee["remarks"]:
        blocks.append(Sentences(["Note as well:", *map(str, guarantee["remarks"])]))
    return blocks
