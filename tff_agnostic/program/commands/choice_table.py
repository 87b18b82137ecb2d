"""Checks and table of the evaluation in which each client chooses a model from a family."""

from __future__ import annotations

from collections.abc import Mapping

from tabulate import tabulate

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.metrics.evaluation_report import statistic_names
from tff_agnostic.metrics.formatting import cell, with_percent
from tff_agnostic.models.model import Measure, ModelWeights
from tff_agnostic.program.reports.evaluation_table import clipped_lines
from tff_agnostic.training.evaluate import ChoiceReport

CHOSEN = "each client's choice"
IN_HINDSIGHT = "best in hindsight"


def choice_table(report: ChoiceReport) -> str:
    """Returns a table per measure.

    Rows are the models, the clients' choices, and the best model in hindsight.
    """
    tables = [_table(report, name, measure) for name, measure in report.chosen.measures.items()]
    lines = [
        f"{CHOSEN}: by its loss on {report.adaptation_share:g} of its examples; every row is "
        "measured on the others",
        f"{IN_HINDSIGHT}: for each measure by itself, the model that is best on those others",
    ]
    if report.clients["too_few"]:
        lines.append(
            "left out, as they have fewer than two examples: "
            f"{counted(report.clients['too_few'], 'client')}"
        )
    if report.clients["non_finite"]:
        lines.append(
            "left out, as their losses are not finite with one of the models: "
            + counted(report.clients["non_finite"], "client")
        )
    # All reports come from one measurement, so their counts of clipped values are equal.
    return "\n".join(["\n\n".join(tables), *lines, *clipped_lines(report.chosen)])


def _table(report: ChoiceReport, name: str, measure: Measure) -> str:
    rows = {**report.models, CHOSEN: report.chosen, IN_HINDSIGHT: report.in_hindsight}
    percentiles = tuple(report.chosen.overall.measures[name].percentiles)
    lines = []
    for row, evaluation in rows.items():
        measured = evaluation.overall.measures[name]
        values = [measured.value, *measured.over_clients().values()]
        chosen_by = str(report.num_choices[row]) if row in report.num_choices else ""
        lines.append([row, chosen_by, *(cell(value, measure.unit, 4) for value in values)])
    headers = [with_percent(name, measure.unit), "clients", "all", *statistic_names(percentiles)]
    table: str = tabulate(lines, headers=headers, disable_numparse=True, stralign="right")
    return table


def check_choice(clients: ClientDataset, models: Mapping[str, ModelWeights], share: float) -> None:
    """Checks that there are several models, and that clients have examples to choose by."""
    if len(models) < 2:
        raise UserError(
            "--adaptation_share: expected a family of models to choose from, found one model, "
            f"{next(iter(models))}"
        )
    ids = clients.client_ids
    sizes = {client_id: len(clients.read(client_id)["domain_id"]) for client_id in ids}
    # A client with a single example cannot choose; the table counts such clients.
    small = {client_id: size for client_id, size in sizes.items() if size > 1 and share * size < 1}
    if small:
        first = min(small, key=lambda client_id: small[client_id])
        raise UserError(
            f"--adaptation_share={share:g}: expected a share that leaves each client an example to "
            f"choose by, found {len(small)} of {len(ids)} clients with less than one, such as "
            f"{first} with {small[first]} examples: give {1 / small[first]:.3g} or more"
        )
