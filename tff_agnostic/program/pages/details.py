"""What was trained on what, and how it was measured: the first parts of a model card."""

from collections.abc import Sequence
from typing import Optional

from tff_agnostic.program.pages.blocks import (
    Blanks,
    Block,
    Facts,
    Line,
    Name,
    Number,
    Paragraph,
    Part,
    Section,
    Table,
)
from tff_agnostic.program.pages.run_record import RunRecord
from tff_agnostic.program.reporting.cells import UNDEFINED, cell
from tff_agnostic.quantities import Unit

NOT_RECORDED = "not recorded by the release that wrote this run"
_MAX_CLASSES = 20


def model_section(run: RunRecord) -> Section:
    """Returns what the model is, and what trained it ("Model Details")."""
    about = run.about
    classes = about.get("model", "classes")
    rows: list[tuple[str, Line]] = [
        ("Task", _task(run)),
        ("Algorithm", _algorithm(run)),
        ("Rounds", run.source.number("rounds")),
        ("Clients in a round", str(run.config.get("clients_per_round", UNDEFINED))),
        ("Seed", run.source.number("seed")),
        ("Parameters", about.number("model", "parameters")),
        ("Inputs of an example", _inputs(about.get("model", "inputs"))),
    ]
    if classes:
        more = len(classes) - _MAX_CLASSES
        names: list[Part] = [f"{len(classes)}: "]
        for name in classes[:_MAX_CLASSES]:
            names += [Name(str(name)), ", "]
        rows.append(("Classes", [*names[:-1], *([f" and {more} more"] if more > 0 else [])]))
    return Section("model", "The model", [Facts(rows)])


def use_section(domains: Sequence[str]) -> Section:
    """Returns what a person has to say: what the model is for ("Intended Use")."""
    return Section(
        "use",
        "Intended use and sign-off",
        [
            Paragraph(
                "What was measured says something of clients like those that were evaluated, in "
                f"{_domains(len(domains))}, and nothing of others. What the model is meant for, "
                "and whether it is good enough for that, no run can know:"
            ),
            Blanks(["Meant for", "Not to be used for", "Reviewed by, on"]),
        ],
    )


def data_section(run: RunRecord, is_private: bool) -> Section:
    """Returns clients and examples of each domain ("Training Data", "Evaluation Data").

    Args:
        run: A run on the data.
        is_private: Whether anything on the page was trained on them with differential privacy.
    """
    blocks: list[Block] = []
    if run.about.get("data") is None:
        examples: list[Sequence[Line]] = [
            (Name(name), run.source.number("domains", name, "num_examples")) for name in run.domains
        ]
        caption = f"Examples of the {run.split} clients; the others are {NOT_RECORDED}"
        blocks.append(Table(caption, ["domain", "examples"], examples))
        return Section("data", "The data", blocks)
    headings = ["domain"]
    splits = {"train": "training", "evaluated": run.split}
    for what in splits.values():
        headings += [f"{what} clients", f"{what} examples", "share"]
    rows = [
        [Name(name), *(part for split in splits for part in _of_domain(run, split, name))]
        for name in run.domains
    ]
    rows.append(["in all", *(part for split in splits for part in _in_all(run, split))])
    notes = [
        f"What the {what} clients hold was not counted: all of them would have to be read."
        for split, what in splits.items()
        if run.about.get("data", split, "domains") is None
    ]
    notes.append("A client may have examples of several domains.")
    if is_private:
        notes.append("These counts are exact: no epsilon covers them.")
    blocks.append(Table("Clients and examples of each domain", headings, rows, notes))
    return Section("data", "The data", blocks)


def measures_section(run: RunRecord) -> Section:
    """Returns what was measured, and how sure it is ("Metrics")."""
    level = run.result.get("interval_level")
    blocks: list[Block] = [measure_facts(run)]
    if level is None:
        blocks.append(Paragraph(f"How sure the numbers are was {NOT_RECORDED}."))
    else:
        blocks.append(
            Paragraph(
                f"Numbers in brackets are {level:.0%} confidence intervals. That of a share of "
                "examples is Wilson's, as if examples were independent; those of one client mostly "
                "are alike, and then it is too narrow: the interval of the mean over clients, "
                "which is Student's, knows how clients differ. That of a percentile lies between "
                "two clients' values; that of a superquantile is Student's of its influence "
                "function, where ten clients or more are in the tail. Clients are taken for a "
                "random sample. A loss or a perplexity over examples has no interval: its spread "
                "would take squares of what clients send, which evaluations do not sum; its mean "
                "over clients has one. None covers what another seed would have trained: several "
                "trials do (./run compare). The worst of several uncertain numbers looks worse "
                "than it is."
            )
        )
    return Section("measures", "What was measured", blocks)


def measure_facts(run: RunRecord) -> Facts:
    """Returns what each measure is."""
    rows: list[tuple[str, Line]] = [
        (name, f"{measure.better} is better{_in_percent(measure.unit)}")
        for name, measure in run.measures.items()
    ]
    share = run.result.get("superquantile_share")
    if share is not None:
        text = f"the mean of the worst {share:.0%} of the clients, each counted once"
        rows.append(("superquantile", text))
    return Facts(rows)


def _task(run: RunRecord) -> Line:
    summary = run.about.get("task", "summary")
    return f"{run.result['task']}: {summary}" if summary else str(run.result["task"])


def _algorithm(run: RunRecord) -> Line:
    paper = run.about.get("algorithm", "paper")
    return [Name(run.label), f" ({paper})" if paper else ""]


def _inputs(inputs: object) -> str:
    if inputs is None:
        return NOT_RECORDED
    if isinstance(inputs, dict):
        return ", ".join(f"{name}: {_inputs(of)}" for name, of in inputs.items())
    return str(inputs)


def _of_domain(run: RunRecord, split: str, name: str) -> tuple[Part, Part, Part]:
    counts = run.about.get("data", split, "domains")
    total = sum(domain["examples"] for domain in counts.values()) if counts else 0
    share: Optional[float] = counts[name]["examples"] / total if total else None
    text = UNDEFINED if share is None else cell(share, Unit.SHARE, 3) + "%"
    path = ("data", split, "domains", name)
    return (
        run.about.number(*path, "clients"),
        run.about.number(*path, "examples"),
        Number(text, share),
    )


def _in_all(run: RunRecord, split: str) -> tuple[Part, Part, Part]:
    counts = run.about.get("data", split, "domains")
    total = sum(domain["examples"] for domain in counts.values()) if counts else None
    examples = Number(UNDEFINED if total is None else str(total), total)
    return run.about.number("data", split, "clients"), examples, ""


def _domains(count: int) -> str:
    return "one domain" if count == 1 else f"{count} domains"


def _in_percent(unit: Unit) -> str:
    return ", in percent" if unit is Unit.SHARE else ""
