"""The page of a run, laid out after model cards (Mitchell et al. 2019)."""

from collections.abc import Sequence
from typing import Optional

from tff_agnostic.program.pages.blocks import Page, Paragraph, Section
from tff_agnostic.program.pages.caveats import caveats_section
from tff_agnostic.program.pages.course import course_section, weights_section
from tff_agnostic.program.pages.details import (
    data_section,
    measures_section,
    model_section,
    use_section,
)
from tff_agnostic.program.pages.reproduction import reproduction_section
from tff_agnostic.program.pages.results import (
    domains_section,
    models_section,
    summary_section,
    tail_section,
)
from tff_agnostic.program.pages.run_record import RunRecord
from tff_agnostic.program.pages.server_view import server_section

_BASELINE = "fed_avg"


def run_page(run: RunRecord, command: Optional[Sequence[str]] = None) -> Page:
    """Returns the page.

    Args:
        run: The run.
        command: What trains it again; None if that is not known.
    """
    task = str(run.result["task"])
    return Page(
        f"{run.label} on {task}",
        [
            "A report of one run, laid out after model cards (Mitchell et al. 2019). Its numbers "
            "are those of result.json; seed ",
            run.source.number("seed"),
            ", ",
            run.source.number("rounds"),
            " rounds.",
        ],
        [
            summary_section(run),
            caveats_section(run),
            model_section(run),
            use_section(run.domains),
            data_section(run, run.is_private),
            measures_section(run),
            domains_section(run),
            tail_section(run),
            models_section(run),
            _price_section(run),
            course_section(run),
            weights_section(run),
            server_section(run),
            reproduction_section(run, command),
        ],
    )


def _price_section(run: RunRecord) -> Section:
    if run.result["algorithm"] == _BASELINE:
        text = "This is FedAvg itself: it asks no domain to pay for another one."
    else:
        text = (
            "One run has nothing to be compared with: what the majority paid for the worst domain "
            "is seen beside FedAvg, with several seeds. ./run compare trains both and says it."
        )
    return Section("price", "The price", [Paragraph(text)])
