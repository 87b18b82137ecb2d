"""report.html of a run, laid out after model cards (Mitchell et al. 2019)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.metrics.class_counts import ACCURACY, CLASS_COUNTS, constant_accuracies
from tff_agnostic.metrics.evaluation_report import SUPERQUANTILE, client_values_from_json
from tff_agnostic.metrics.formatting import capitalized, with_percent
from tff_agnostic.metrics.intervals import MIN_CLIENTS
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.class_tables import class_blocks
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
    text,
    warnings,
)
from tff_agnostic.program.reports.figures import Values, quantity_figure
from tff_agnostic.program.reports.html import write_page
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
from tff_agnostic.program.reports.sections import (
    NOT_FLAGS,
    TAIL,
    command_blocks,
    data_blocks,
    facts,
    measure_facts,
    versions_blocks,
)

_PLAIN = "plain"
# Kind of privacy in which clients add the noise, instead of the server.
_DISTRIBUTED = "distributed"
_ALL = "all"
_NUM_CLIENTS = "num_clients"
# Maximum and minimum number of points in a curve, and maximum number of points in a figure, to keep
# pages small.
_MAX_POINTS, _MIN_POINTS = 300, 20
_FIGURE_POINTS = 3000
# Maximum number of domains in the table of weights.
_MAX_WEIGHTS = 10


def run_page(run: RunRecord, command: Optional[Sequence[str]] = None) -> Page:
    """Returns the page of a run.

    Args:
        command: Command that trains the run again; None if it is unknown.
    """
    drawn = [q for q in run.quantities if q.is_drawn and q.role is not Role.DOMAIN_WEIGHT]
    courses = [_course_figure(run, quantity) for quantity in drawn if run.drawn(quantity)]
    return Page(
        f"{run.label} on {run.result['task']}",
        "A report of one run, laid out after model cards (Mitchell et al. 2019); seed "
        f"{run.get('seed')}, {run.get('rounds')} rounds.",
        [
            Section("The verdict", text(*run_verdict(run))),
            Section("In short", _summary(run)),
            Section("What to know first", warnings(caveats(run))),
            Section("The model", [_model(run)]),
            Section("The data", data_blocks(run, run.is_private), is_folded=True),
            Section("What was measured", [measure_facts(run), _intervals(run)], is_folded=True),
            Section("Results by domain", _domains(run)),
            Section("Confusion matrix", class_blocks(run), is_folded=True),
            Section("The tail of the clients", _tail(run), is_folded=True),
            Section("The models of the family", _family(run)),
            Section("The course of training", courses, is_folded=True),
            Section("Weights of the domains", _weights(run), is_folded=True),
            Section("What the server saw", [*_sums(run), *_privacy(run)], is_folded=True),
            Section("How to make it again", _reproduction(run, command), is_folded=True),
        ],
    )


def write_run_report(
    folder: Path, command: Optional[Sequence[str]] = None, title: Optional[str] = None
) -> Path:
    """Writes the report of the complete run in a folder, and returns its path.

    Args:
        command: Command that trains the run again; None if it is unknown.
    """
    run = read_run(folder)
    try:
        page = run_page(run, command)
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise UserError(f"{folder / RESULT}: expected the result of a run, found: {e}") from e
    return write_page(folder, page, title)


@contextmanager
def with_results_kept(folder: Path) -> Iterator[None]:
    """Within the context, errors about the report also say that the results are complete."""
    try:
        yield
    except UserError as e:
        raise UserError(
            f"{e}; the results in {folder} are complete, and ./run report --run={folder} writes "
            "the report once that is fixed"
        ) from e


# --- Sections that only the pages of runs have


def _summary(run: RunRecord) -> list[Block]:
    """Returns the numbers that a reader looks for first."""
    rows: list[Sequence[Cell]] = []
    for measure in metrics_first(run.measures):
        name, unit = measure.name, measure.unit
        worst = run.get("worst", name, "domain")
        rows.append(
            [
                with_percent(name, unit),
                run.measured(measure, "domains", worst),
                worst or "-",
                run.number("overall", name, unit=unit),
                run.number("difference", name, unit=unit),
                run.number("overall", "over_clients", name, SUPERQUANTILE, unit=unit),
            ]
        )
    headings = ["", "worst domain", "its name", "all examples", "best - worst", TAIL]
    blocks = [*warnings(harm(run)), Table(f"On the {_split(run)} clients", headings, rows)]
    private = run.get("privacy")
    if private:
        epsilon = private.get("epsilon")
        shown = "infinite" if epsilon is None else f"{epsilon:.4g}"
        blocks += text(
            f"Training is ({shown}, {private['delta']:.3g})-differentially private for each "
            f"{private['unit']}."
        )
    return blocks


def _split(run: RunRecord) -> str:
    return split_name(run.split)


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
    if run.has_noisy_numbers:
        return Sentences(["Numbers have no intervals, which would not cover their noise."])
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
        series = _domain_series(run, measure)
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


def _domain_series(run: RunRecord, measure: Measure) -> Series:
    by_domain = {}
    for name in run.domains:
        ends = run.measured(measure, "domains", name).interval or ()
        by_domain[name] = Estimate(run.value("domains", name, measure.name), *ends)
    return Series(run.label, by_domain, run.value("overall", measure.name))


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
    has_intervals = unit is Unit.SHARE and not run.has_noisy_numbers
    if has_intervals and any(count and count < MIN_CLIENTS for count in clients):
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
        headings = ["domain", "clients", *(TAIL if s == SUPERQUANTILE else s for s in statistics)]
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


def _family(run: RunRecord) -> list[Block]:
    """Returns the results of each model; nothing for a run with one model."""
    further: Mapping[str, Any] = run.result.get("models") or {}
    if not further:
        return []
    main = run.result["main_model"]
    models: dict[str, tuple[Any, ...]] = {main: (), **{n: ("models", n) for n in further}}
    blocks = text(
        f"The run trained several models. The rest of this page is about the first one, {main}."
    )
    for measure in metrics_first(run.measures):
        name = measure.name
        paths = {
            "worst domain": ("worst", name, "value"),
            "all examples": ("overall", name),
            "best - worst": ("difference", name),
            TAIL: ("overall", "over_clients", name, SUPERQUANTILE),
            **{domain: ("domains", domain, name) for domain in run.domains},
        }
        rows: list[list[Cell]] = [
            [model, *(run.number(*keys, *path, unit=measure.unit) for path in paths.values())]
            for model, keys in models.items()
        ]
        caption = f"{with_percent(name, measure.unit)}, of each model"
        blocks.append(Table(caption, ["", *paths], rows))
    return blocks


def _weights(run: RunRecord) -> list[Block]:
    """Returns the domains' weights over the rounds: lambda, or their effective weight in FedAvg."""
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
            f"{capitalized(quantity.label)}: {quantity.name} in metrics.csv. If one domain keeps "
            "all of the weight, training serves that domain alone."
        ),
        _course_figure(run, quantity),
        Table("Over the rounds", headings, rows, max_rows=_MAX_WEIGHTS),
    ]
    loss = run.number("worst_mixture", "loss")
    if loss.value is not None:
        blocks.append(Table("", (), [("Loss of the worst mixture of the set", loss)]))
    return blocks


def _course_figure(run: RunRecord, quantity: ReportField) -> Figure:
    columns = run.drawn(quantity)

    def draw() -> matplotlib.figure.Figure:
        return quantity_figure(quantity, columns, _thinned(columns, run.columns))

    return Figure(f"{quantity.label} over the rounds", draw)


def _thinned(columns: Sequence[Column], values: Values) -> Values:
    """Returns the values in evenly spaced rounds of a long run, including the last round."""
    has_value = np.any([np.isfinite(values[column.name]) for column in columns], axis=0)
    (rounds,) = np.nonzero(has_value)
    limit = _FIGURE_POINTS // max(1, len(columns))
    limit = min(max(limit, _MIN_POINTS), _MAX_POINTS)
    if len(rounds) > limit:
        rounds = rounds[np.linspace(0, len(rounds) - 1, limit).round().astype(int)]
    return {name: values[name][rounds] for name in (ROUND, *(c.name for c in columns))}


def _reproduction(run: RunRecord, command: Optional[Sequence[str]]) -> list[Block]:
    """Returns the command, digests, versions and settings to train the same model again."""
    settings = {f"--{n}": v for n, v in run.config.items() if n not in NOT_FLAGS}
    execution = run.config.get("execution") or {}
    return [
        *command_blocks(command, run.is_private),
        *facts("Digests of its files and code:", run.fingerprint),
        *versions_blocks(run),
        *facts("All settings (config.json):", settings),
        *facts("Execution of the rounds, which can change last bits:", execution),
    ]


def _sums(run: RunRecord) -> list[Block]:
    """Returns the values that reached the server, and the guarantees for them."""
    if run.config.get("pooled"):
        return text("No federated training: the examples of all clients were in one place.")
    if run.config.get("aggregation", _PLAIN) == _PLAIN:
        return text(
            "Plain sums: training and evaluation use sums over clients only, but the server that "
            "adds them up can see each client's values. Models, losses, counts and metrics of a "
            "client are readable to the server."
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
        return text(*lines)
    if min_clients is not None:
        limit = counted(min_clients, "client")
        lines.append(f"A sum is of at least {limit}; smaller cohorts are refused.")
    lines.append(
        "Sums are exact: they do not hide the number of examples of each domain, the values of a "
        "domain that one client of a cohort holds alone, and the difference of two sums."
    )
    return text(*lines)


def _privacy(run: RunRecord) -> list[Block]:
    guarantee = run.get("privacy")
    if not guarantee:
        return text(
            "No differential privacy: the model may have memorised something of single clients, "
            "and nothing bounds how much."
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
