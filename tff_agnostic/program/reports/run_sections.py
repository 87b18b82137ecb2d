"""Results by domain, over clients, over rounds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.metrics.class_counts import ACCURACY
from tff_agnostic.metrics.constant_answers import CONSTANTS, OVERALL
from tff_agnostic.metrics.evaluation_report import client_values_from_json
from tff_agnostic.metrics.formatting import capitalized, cell, with_percent
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.distributions import (
    Estimate,
    Series,
    client_figure,
    domain_figure,
    worst_first,
)
from tff_agnostic.program.reports.figures import Values, figure_of
from tff_agnostic.program.reports.page import (
    DECIMALS,
    Block,
    Facts,
    Line,
    Name,
    Number,
    Paragraph,
    Part,
    Picture,
    Section,
    Source,
    Table,
    Warnings,
)
from tff_agnostic.program.reports.run_record import RunRecord, harm, metrics_first, weight_quantity

_VALUE = "value"
_NUM_CLIENTS = "num_clients"
# Of other measures, and of accuracy.
_CONSTANT_HEADINGS = ("constant answer", "most frequent class")
_CONSTANT_NOTES = (
    "Constant answer: what the best answer that looks at no input attains in the domain: shares of"
    " its classes or words, or the mean of its numbers.",
    "Most frequent class: what always answering the class that a domain has most examples of "
    "attains there.",
)
# Models of a family beside each other; of more the names become the rows.
_MAX_COLUMNS = 5
# Points of a curve, and of all curves of a figure: a page holds several, and is to stay small.
_MOST_POINTS, _FEWEST_POINTS = 300, 20
_POINTS_OF_FIGURE = 3000
# Rows of the table of weights.
_MAX_WEIGHTS = 10


def summary_section(run: RunRecord) -> Section:
    """Returns the numbers that a reader wants first."""
    source = run.source
    headings = ["", "worst domain", "its name", "all examples", "best - worst"]
    headings.append("worst tenth of clients")
    rows: list[Sequence[Line]] = []
    for measure in metrics_first(run.measures):
        name = measure.name
        worst = source.get("worst", name, "domain")
        rows.append(
            [
                with_percent(name, measure.unit),
                _worst_value(source, name, measure.unit),
                "" if worst is None else Name(worst),
                source.number("overall", name, unit=measure.unit),
                source.number("difference", name, unit=measure.unit),
                source.number("overall", "over_clients", name, "superquantile", unit=measure.unit),
            ]
        )
    first = harm(run)
    blocks: list[Block] = [Warnings(first)] if first else []
    blocks.append(Table(f"On the {run.split} clients", headings, rows))
    privacy = run.result.get("privacy")
    if privacy:
        private = source.below("privacy")
        epsilon = private.number("epsilon")
        blocks.append(
            Paragraph(
                [
                    "Training is (",
                    epsilon if epsilon.value is not None else "infinite",
                    ", ",
                    scientific(private.number("delta")),
                    f")-differentially private for each {privacy['unit']}.",
                ]
            )
        )
    return Section("summary", "In short", blocks)


def domains_section(run: RunRecord) -> Section:
    """Returns every domain's numbers, the worst first ("Quantitative Analyses")."""
    blocks: list[Block] = []
    for measure in metrics_first(run.measures):
        series = domain_series(run, measure)
        blocks.append(_domain_table(run, measure, series))
        blocks.append(
            Picture(
                functools.partial(
                    domain_figure,
                    [series],
                    f"{measure.name} on the {run.split} clients",
                    measure.unit,
                    measure.higher_is_better,
                    run.result.get("not_counted") or (),
                ),
                f"{measure.name} of every domain, the worst on top; the dashed line is that of all "
                "examples, error bars are the intervals of the table",
            )
        )
    return Section("domains", "Results by domain", blocks)


def tail_section(run: RunRecord) -> Section:
    """Returns how measures are spread over clients, each counted once."""
    blocks: list[Block] = []
    for measure in metrics_first(run.measures):
        name = measure.name
        of = run.source.get("overall", "over_clients", name) or {}
        statistics = [key for key in of if key != _NUM_CLIENTS]
        rows: list[Sequence[Line]] = [
            [
                label if label == "all" else Name(label),
                part.number("over_clients", name, _NUM_CLIENTS),
                *(_with_interval(part, name, s, measure.unit) for s in statistics),
            ]
            for label, part in _sets(run)
        ]
        caption = f"{with_percent(name, measure.unit)} over the {run.split} clients"
        blocks.append(Table(caption, ["domain", "clients", *statistics], rows))
        values = run.result.get("client_values", {}).get(name)
        if values:
            rows_drawn = {run.label: [client_values_from_json(values)]}
            blocks.append(
                Picture(
                    functools.partial(client_figure, name, measure.unit, rows_drawn, run.split),
                    f"{name}: the share of the clients with a value up to that, and the mean of "
                    "the clients by their number of examples",
                )
            )
    return Section("clients", "The tail of the clients", blocks)


def models_section(run: RunRecord) -> Section:
    """Returns the further models of a family; nothing of a run with one model."""
    models: dict[str, Any] = run.result.get("models") or {}
    if not models:
        return Section("models", "", [])
    main = run.source
    name_of_main = run.result["main_model"]
    sources = {name_of_main: main, **{n: main.below("models", n) for n in models}}
    blocks: list[Block] = [
        Paragraph(
            [
                "The run trained several models. What stands elsewhere on this page is of the "
                "first one, ",
                Name(name_of_main),
                ".",
            ]
        ),
    ]
    for measure in metrics_first(run.measures):
        name = measure.name
        rows = _model_rows(run, sources, name, measure.unit)
        headings: list[Line] = ["", *map(Name, sources)]
        if len(sources) > _MAX_COLUMNS:
            columns = [headings, *rows]
            headings, *rows = [list(column) for column in zip(*columns)]
        blocks.append(Table(f"{with_percent(name, measure.unit)}, of each model", headings, rows))
    return Section("models", "The models of the family", blocks)


def domain_series(run: RunRecord, measure: Measure) -> Series:
    """Returns a measure of every domain with its interval, to be drawn."""
    return Series(
        run.label,
        {name: _estimate(run.source.below("domains", name), measure.name) for name in run.domains},
        _number(run.source.get("overall", measure.name)),
    )


def scientific(number: Number) -> Number:
    """Returns a small number as 1e-05 instead of 0.0000."""
    if number.value is None:
        return number
    return Number(f"{number.value:.3g}", number.value, number.source)


def _domain_table(run: RunRecord, measure: Measure, series: Series) -> Table:
    not_counted = run.result.get("not_counted") or ()
    worst = run.source.get("worst", measure.name, "domain")
    # Of algorithms that weigh no domains, a column of dashes says nothing.
    is_weighed = bool(run.source.get("domain_weights"))
    constant = _constants(run, measure.name)
    rows: list[Sequence[Line]] = []
    for name in worst_first([series], measure.higher_is_better):
        part = run.source.below("domains", name)
        remark = "worst" if name == worst else "not counted" if name in not_counted else ""
        rows.append(
            [
                Name(name),
                _with_interval(part, measure.name, _VALUE, measure.unit),
                part.number("num_examples"),
                part.number("over_clients", measure.name, _NUM_CLIENTS),
                *([run.source.number("domain_weights", name, decimals=3)] if is_weighed else []),
                *([_constant(constant.get(name), measure.unit)] if constant else []),
                remark,
            ]
        )
    rows.append(
        [
            "all",
            _with_interval(run.source.below("overall"), measure.name, _VALUE, measure.unit),
            run.source.number("overall", "num_examples"),
            run.source.number("overall", "over_clients", measure.name, _NUM_CLIENTS),
            *([""] if is_weighed else []),
            *([_constant(constant.get(OVERALL), measure.unit)] if constant else []),
            "",
        ]
    )
    notes = ["Weight: what the domain weighed in the last round."] if is_weighed else []
    if constant:
        notes.append(_CONSTANT_NOTES[measure.name == ACCURACY])
    if not_counted:
        fewest = run.result.get("worst_min_examples")
        notes.append(
            f"Not counted in worst and best: domains with fewer than {fewest} {run.split} examples "
            "(--worst_min_examples)."
        )
    return Table(
        f"{with_percent(measure.name, measure.unit)} ({measure.better} is better)",
        [
            *("domain", measure.name, "examples", "clients"),
            *(["weight"] if is_weighed else []),
            *([_CONSTANT_HEADINGS[measure.name == ACCURACY]] if constant else []),
            "",
        ],
        rows,
        notes,
    )


def _constants(run: RunRecord, name: str) -> Mapping[str, float]:
    """Returns the scores of the best constant predictors of a measure, by domain."""
    return run.result.get(CONSTANTS, {}).get(name, {})


def _constant(accuracy: Optional[float], unit: Unit) -> Line:
    return "-" if accuracy is None else Number(cell(accuracy, unit, DECIMALS), accuracy)


def _model_rows(
    run: RunRecord, sources: dict[str, Source], measure: str, unit: Unit
) -> list[list[Line]]:
    def row(title: Part, *keys: str) -> list[Line]:
        return [title, *(source.number(*keys, unit=unit) for source in sources.values())]

    return [
        row("worst domain", "worst", measure, "value"),
        row("all examples", "overall", measure),
        row("best - worst", "difference", measure),
        row("worst tenth of clients", "overall", "over_clients", measure, "superquantile"),
        *(row(Name(name), "domains", name, measure) for name in run.domains),
    ]


def _sets(run: RunRecord) -> list[tuple[str, Source]]:
    domains = [(name, run.source.below("domains", name)) for name in run.domains]
    return [*domains, ("all", run.source.below("overall"))]


def _worst_value(source: Source, measure: str, unit: Unit) -> Line:
    number = source.number("worst", measure, "value", unit=unit)
    domain = source.get("worst", measure, "domain")
    if domain is None:
        return number
    ends = source.interval("domains", domain, "intervals", measure, _VALUE, unit=unit)
    return [number, " ", *ends]


def _with_interval(part: Source, measure: str, statistic: str, unit: Unit) -> Line:
    keys = (measure,) if statistic == _VALUE else ("over_clients", measure, statistic)
    ends = part.interval("intervals", measure, statistic, unit=unit)
    return [part.number(*keys, unit=unit), *([" "] if ends else []), *ends]


def _estimate(part: Source, measure: str) -> Estimate:
    ends = part.get("intervals", measure, _VALUE) or (None, None)
    return Estimate(_number(part.get(measure)), *map(_number, ends))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def course_section(run: RunRecord) -> Section:
    """Returns the curves of everything that is drawn of a run."""
    drawn = [q for q in run.quantities if q.is_drawn and q.role is not Role.DOMAIN_WEIGHT]
    blocks: list[Block] = [curves_of(run, quantity) for quantity in drawn if run.drawn(quantity)]
    return Section("course", "The course of training", blocks)


def weights_section(run: RunRecord) -> Section:
    """Returns what domains weighed over the rounds: lambda, or their shares of FedAvg's rounds."""
    quantity = weight_quantity(run)
    if quantity is None:
        return Section("weights", "", [])
    ends = {
        column: run.columns[column.name][np.isfinite(run.columns[column.name])]
        for column in run.drawn(quantity)
    }
    ordered = sorted((c for c, v in ends.items() if len(v)), key=lambda c: -ends[c][-1])
    rows: list[list[Line]] = [
        [
            Name(column.domain or ""),
            *_statistics(ends[column]),
            run.source.number("domain_weights", column.domain, decimals=3),
        ]
        for column in ordered[:_MAX_WEIGHTS]
    ]
    left_out = len(ordered) - len(rows)
    notes = [f"{left_out} domains of smaller weight are not listed."] if left_out > 0 else []
    headings = ["domain", "first round", "least", "mean", "largest", "last round"]
    blocks: list[Block] = [
        Paragraph(
            f"{capitalized(quantity.label)}: {quantity.name} in metrics.csv. "
            "Where it runs to one domain and stays, training serves that domain alone."
        ),
        curves_of(run, quantity),
        Table("Over the rounds", headings, rows, notes),
    ]
    mixture = run.source.below("worst_mixture")
    if mixture.get("loss") is not None:
        blocks.append(Facts([("Worst mixture of the set", ["loss ", mixture.number("loss")])]))
    return Section("weights", "What domains weighed", blocks)


def thinned(columns: list[Column], values: Values) -> Values:
    """Returns some of the rounds of a long run: the last one, and others as far apart as can be.

    Args:
        values: The columns of metrics.csv.
    """
    has_value = np.any([np.isfinite(values[column.name]) for column in columns], axis=0)
    (rounds,) = np.nonzero(has_value)
    limit = _POINTS_OF_FIGURE // max(1, len(columns))
    limit = min(max(limit, _FEWEST_POINTS), _MOST_POINTS)
    if len(rounds) > limit:
        rounds = rounds[np.linspace(0, len(rounds) - 1, limit).round().astype(int)]
    return {name: values[name][rounds] for name in (ROUND, *(c.name for c in columns))}


def curves_of(run: RunRecord, quantity: ReportField) -> Picture:
    """Returns the picture of a quantity over the rounds."""
    columns = run.drawn(quantity)
    return Picture(
        functools.partial(_figure, quantity, columns, run.columns),
        f"{quantity.label} over the rounds",
    )


def _figure(
    quantity: ReportField, columns: list[Column], values: Values
) -> matplotlib.figure.Figure:
    return figure_of(quantity, columns, thinned(columns, values))


def _statistics(values: np.ndarray) -> list[Number]:
    found = (values[0], values.min(), values.mean(), values.max())
    return [Number(cell(float(value), Unit.NONE, 3), float(value)) for value in found]
