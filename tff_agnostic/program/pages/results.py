"""How good a model is for whom: per domain, in the tail of the clients, and each of a family."""

import functools
from collections.abc import Sequence
from typing import Any

from tff_agnostic.program.pages.blocks import (
    Block,
    Line,
    Name,
    Number,
    Paragraph,
    Part,
    Picture,
    Section,
    Source,
    Table,
)
from tff_agnostic.program.pages.client_curves import client_curves
from tff_agnostic.program.pages.run_record import MeasureFacts, RunRecord
from tff_agnostic.program.reporting.bars import Estimate, Series, domain_figure
from tff_agnostic.program.reporting.cells import with_percent
from tff_agnostic.quantities import Unit

_VALUE = "value"
_NUM_CLIENTS = "num_clients"
# Models of a family beside each other; of more the names become the rows.
_MAX_COLUMNS = 5


def summary_section(run: RunRecord) -> Section:
    """Returns the numbers that a reader wants first."""
    source = run.source
    headings = ["", "worst domain", "its name", "all examples", "best - worst"]
    headings.append("worst tenth of clients")
    rows: list[Sequence[Line]] = []
    for name, measure in run.measures.items():
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
    blocks: list[Block] = [Table(f"On the {run.split} clients", headings, rows)]
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
    for measure in run.measures.values():
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
    for name, measure in run.measures.items():
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
            blocks.append(
                Picture(
                    functools.partial(client_curves, measure, {run.label: values}, run.split),
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
    # Runs of earlier releases do not say what it is called.
    name_of_main = run.result.get("main_model", "the main model")
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
    for name, measure in run.measures.items():
        rows = _model_rows(run, sources, name, measure.unit)
        headings: list[Line] = ["", *map(Name, sources)]
        if len(sources) > _MAX_COLUMNS:
            columns = [headings, *rows]
            headings, *rows = [list(column) for column in zip(*columns)]
        blocks.append(Table(f"{with_percent(name, measure.unit)}, of each model", headings, rows))
    return Section("models", "The models of the family", blocks)


def domain_series(run: RunRecord, measure: MeasureFacts) -> Series:
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


def _domain_table(run: RunRecord, measure: MeasureFacts, series: Series) -> Table:
    not_counted = run.result.get("not_counted") or ()
    sign = 1.0 if measure.higher_is_better else -1.0
    by_domain = series.by_domain
    # Those without a value last: they are neither good nor bad.
    names = sorted(by_domain, key=lambda n: _sort_key(sign * by_domain[n].value))
    worst = run.source.get("worst", measure.name, "domain")
    # Of algorithms that weigh no domains, a column of dashes says nothing.
    is_weighed = bool(run.source.get("domain_weights"))
    rows: list[Sequence[Line]] = []
    for name in names:
        part = run.source.below("domains", name)
        remark = "worst" if name == worst else "not counted" if name in not_counted else ""
        rows.append(
            [
                Name(name),
                _with_interval(part, measure.name, _VALUE, measure.unit),
                part.number("num_examples"),
                part.number("over_clients", measure.name, _NUM_CLIENTS),
                *([run.source.number("domain_weights", name, decimals=3)] if is_weighed else []),
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
            "",
        ]
    )
    notes = ["Weight: what the domain weighed in the last round."] if is_weighed else []
    if not_counted:
        fewest = run.result.get("worst_min_examples")
        notes.append(
            f"Not counted in worst and best: domains with fewer than {fewest} {run.split} examples "
            "(--worst_min_examples)."
        )
    return Table(
        f"{with_percent(measure.name, measure.unit)} ({measure.better} is better)",
        ["domain", measure.name, "examples", "clients", *(["weight"] if is_weighed else []), ""],
        rows,
        notes,
    )


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


def _sort_key(value: float) -> tuple[bool, float]:
    is_unknown = value != value
    return is_unknown, 0.0 if is_unknown else value
