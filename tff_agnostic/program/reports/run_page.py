"""report.html of a run, after model cards."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import write_text
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import UNDEFINED, cell, with_percent
from tff_agnostic.program.reports.class_section import classes_section
from tff_agnostic.program.reports.page import (
    Blanks,
    Block,
    Bullets,
    Command,
    Facts,
    Line,
    Name,
    Number,
    Page,
    Paragraph,
    Part,
    Section,
    Table,
    in_line,
    rendered,
    title_of,
)
from tff_agnostic.program.reports.run_record import (
    RunRecord,
    caveats_section,
    metrics_first,
    read_run,
)
from tff_agnostic.program.reports.run_sections import (
    course_section,
    domains_section,
    models_section,
    scientific,
    summary_section,
    tail_section,
    weights_section,
)
from tff_agnostic.program.reports.run_verdict import run_verdict

_BASELINE = "fed_avg"
_MAX_CLASSES = 20
# What config.json has beside the settings.
NOT_FLAGS = ("format", "execution")
_PLAIN = "plain"
_NO_PRIVACY = "none"
# The folders of a path in an argument, which may hold several: "--arms=mine=/home/me/a.py:q=1;...".
_FOLDERS = re.compile(r"(?<![^=,;:])/(?:[^/,;:=]+/)*(?=[^/,;:=])")
# Noise that clients add, and not the server.
_DISTRIBUTED = "distributed"
REPORT = "report.html"


def run_page(
    run: RunRecord, command: Optional[Sequence[str]] = None, title: Optional[str] = None
) -> Page:
    """Returns the page.

    Args:
        command: What trains it again; None if that is not known.
        title: Its heading; what was trained if None.
    """
    return Page(
        title or usual_title(run),
        [
            "A report of one run, laid out after model cards (Mitchell et al. 2019). Its numbers "
            "are those of result.json; seed ",
            run.source.number("seed"),
            ", ",
            run.source.number("rounds"),
            " rounds.",
        ],
        [
            verdict_section(run),
            summary_section(run),
            caveats_section(run),
            model_section(run),
            data_section(run, run.is_private),
            measures_section(run),
            domains_section(run),
            classes_section(run),
            tail_section(run),
            models_section(run),
            _price_section(run),
            course_section(run),
            weights_section(run),
            server_section(run),
            reproduction_section(run, command),
            use_section(run.domains),
        ],
    )


def usual_title(run: RunRecord) -> str:
    """Returns what the page of a run is called where nobody says."""
    return f"{run.label} on {run.result['task']}"


def verdict_section(run: RunRecord) -> Section:
    """Returns where the run is better than a constant answer; nothing where that is not known."""
    lines = run_verdict(run)
    return Section("verdict", "The verdict", [Bullets(lines)] if lines else [])


def _price_section(run: RunRecord) -> Section:
    if run.result["algorithm"] == _BASELINE:
        text = "This is FedAvg itself: it asks no domain to pay for another one."
    else:
        text = (
            "One run has nothing to be compared with: what the majority paid for the worst domain "
            "is seen beside FedAvg, with several seeds. ./run compare trains both and says it."
        )
    return Section("price", "The price", [Paragraph(text)])


def model_section(run: RunRecord) -> Section:
    """Returns what the model is, and what trained it ("Model Details")."""
    about = run.about
    rows: list[tuple[str, Line]] = [
        ("Task", _task(run)),
        ("Algorithm", _algorithm(run)),
        ("Rounds", run.source.number("rounds")),
        ("Clients in a round", str(run.config.get("clients_per_round", UNDEFINED))),
        ("Seed", run.source.number("seed")),
        ("Parameters", about.number("model", "parameters")),
        ("Inputs of an example", _inputs(about.get("model", "inputs"))),
    ]
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
            Blanks(["Meant for", "Not to be used for", "Approved / rejected", "Name", "Date"]),
        ],
    )


def data_section(run: RunRecord, is_private: bool) -> Section:
    """Returns clients and examples of each domain ("Training Data", "Evaluation Data").

    Args:
        run: A run on the data.
        is_private: Whether anything on the page was trained on them with differential privacy.
    """
    blocks: list[Block] = []
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
        f"Examples of the {what} clients were not counted: {_reason(run, split)}."
        for split, what in splits.items()
        if run.about.get("data", split, "domains") is None
    ]
    notes.append("A client may have examples of several domains.")
    if is_private and any(run.about.get("data", split, "domains") for split in splits):
        notes.append("These counts are exact: no epsilon covers them.")
    blocks.append(Table("Clients and examples of each domain", headings, rows, notes))
    return Section("data", "The data", blocks)


def _reason(run: RunRecord, split: str) -> str:
    """Returns why a run did not count the examples of a split's clients."""
    guarantee = run.source.get("privacy", "evaluation") if split == "evaluated" else run.is_private
    return "the run is private" if guarantee else "all of them would have to be read"


def measures_section(run: RunRecord) -> Section:
    """Returns what was measured, and how sure it is ("Metrics")."""
    text = (
        f"Numbers in brackets are {run.result['interval_level']:.0%} confidence intervals. That of "
        "a share of examples is Wilson's, as if examples were independent; those of one client "
        "mostly are alike, and then it is too narrow: the interval of the mean over clients, which "
        "is Student's, knows how clients differ. That of a percentile lies between two clients' "
        "values; that of a superquantile is Student's of its influence function, where ten clients "
        "or more are in the tail. Clients are taken for a random sample. A loss or a perplexity "
        "over examples has no interval: its spread would take squares of what clients send, which "
        "evaluations do not sum; its mean over clients has one. None covers what another seed "
        "would have trained: several trials do (./run compare). The worst of several uncertain "
        "numbers looks worse than it is."
    )
    return Section("measures", "What was measured", [measure_facts(run), Paragraph(text)])


def measure_facts(run: RunRecord) -> Facts:
    """Returns what each measure is."""
    rows: list[tuple[str, Line]] = [
        (measure.name, with_percent(f"{measure.better} is better", measure.unit, "in percent"))
        for measure in metrics_first(run.measures)
    ]
    share = run.result["superquantile_share"]
    text = f"the mean of the worst {share:.0%} of the clients, each counted once"
    rows.append(("superquantile", text))
    classes = run.about.get("model", "classes")
    if classes:
        rows.append(("Classes", _named(classes)))
    return Facts(rows)


def _named(classes: Sequence[Any]) -> list[Part]:
    more = len(classes) - _MAX_CLASSES
    names = in_line([str(name) for name in classes[:_MAX_CLASSES]])
    return [f"{len(classes)}: ", *names, *([f" and {more} more"] if more > 0 else [])]


def _task(run: RunRecord) -> Line:
    summary = run.about.get("task", "summary")
    return f"{run.result['task']}: {summary}" if summary else str(run.result["task"])


def _algorithm(run: RunRecord) -> Line:
    paper = run.about.get("algorithm", "paper")
    return [Name(run.label), f" ({paper})" if paper else ""]


def _inputs(inputs: object) -> str:
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


def reproduction_section(run: RunRecord, command: Optional[Sequence[str]]) -> Section:
    """Returns what is needed to train the same again; see `command_blocks`."""
    execution: dict[str, Any] = run.config.get("execution") or {}
    settings = {name: value for name, value in run.config.items() if name not in NOT_FLAGS}
    blocks = [
        *command_blocks(command, run.is_private),
        *_facts("Digests of what it was made of:", run.fingerprint),
        *versions_blocks(run),
        *_facts("All settings (config.json):", {f"--{n}": v for n, v in settings.items()}),
        *_facts("How rounds were executed, which can change last bits:", execution),
    ]
    return Section("again", "How to make it again", blocks)


def command_blocks(command: Optional[Sequence[str]], is_private: bool) -> list[Block]:
    """Returns a command, and what else it needs.

    Args:
        command: Its arguments; None where it is not known.
        is_private: Whether the noise of what it trains is a secret.
    """
    if not command:
        return [Paragraph("The command is not known here; all settings are below.")]
    but = ", but for the noise and the cohorts of private training, which are secret"
    return [
        Command(shlex.join(command)),
        Paragraph(
            "Files are named without their folders. Equal settings, data and versions give equal "
            f"numbers{but if is_private else ''}."
        ),
    ]


def typed_blocks(command: str) -> list[Block]:
    """Returns a command as somebody typed it, without the folders of files."""
    parts = [_FOLDERS.sub("", part) for part in shlex.split(command)]
    return [Command(shlex.join(parts)), Paragraph("Files are named without their folders.")]


def versions_blocks(run: RunRecord) -> list[Block]:
    """Returns the versions of what trained; nothing where nobody recorded them."""
    return _facts("Versions:", run.about.get("versions") or {})


def _facts(title: str, values: Any) -> list[Block]:
    if not values:
        return []
    return [
        Paragraph(title),
        Facts([(name, setting_value(value)) for name, value in values.items()]),
    ]


def setting_value(value: Any) -> Part:
    """Returns the value of a setting as config.json has it; of files the names alone."""
    if value is None:
        return "not given"
    if isinstance(value, list):
        return Name(",".join(str(_without_folder(item)) for item in value))
    if isinstance(value, str):
        return Name(_without_folder(value))
    return json.dumps(value)


def _without_folder(value: Any) -> Any:
    # Where files lay on somebody's machine is nobody else's business.
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def server_section(run: RunRecord) -> Section:
    """Returns what reached the server, and what is promised of it."""
    return Section("server", "What the server saw", [*_sums(run), *_privacy(run)])


def _sums(run: RunRecord) -> list[Block]:
    if run.config.get("pooled"):
        return [Paragraph("No federated training: the examples of all clients were in one place.")]
    if run.config.get("aggregation", _PLAIN) == _PLAIN:
        return [
            Paragraph(
                "Plain sums: training and evaluation use sums over clients only, but the "
                "server that adds them up can see each client's values. Models, losses, counts and "
                "metrics of a client are readable to the server."
            )
        ]
    security: Mapping[str, Any] = run.about.get("security")
    secure, plain = len(security["secure"]), security["plain"]
    lines: list[Line] = [
        f"{secure} values of a client reach the server in secure sums, "
        + (f"{len(plain)} in plain ones: {', '.join(plain)}." if plain else "none in others."),
        "It is a simulation: the integers are those that a secure-sum protocol would carry, added "
        "up in the clear.",
        *_what_sums_show(run),
    ]
    return [Paragraph("Secure sums:"), Bullets(lines)]


def _what_sums_show(run: RunRecord) -> list[Line]:
    if run.config.get("privacy") == _DISTRIBUTED:
        return [
            "Clients add noise before their integers are summed: of the training the server sees "
            "no exact sum, and does not look at one of too few clients.",
            "Sums of evaluations are exact.",
        ]
    of_few, clients = [], run.config.get("secure_min_clients")
    if clients is not None:
        fewest = counted(clients, "client")
        of_few = [f"A sum is of at least {fewest}; cohorts of fewer are refused."]
    return [
        *of_few,
        "Sums are exact: how many examples each domain has, what a domain held by one client of a "
        "cohort has, and what two sums differ in is not hidden by them.",
    ]


def _privacy(run: RunRecord) -> list[Block]:
    found = run.result.get("privacy")
    if not found:
        return [
            Paragraph(
                "No differential privacy: the model may have memorised something of single "
                "clients, and nothing bounds how much."
            )
        ]
    private = run.source.below("privacy")
    epsilon = private.number("epsilon")
    groups: list[Part] = []
    for name in found["split"]:
        groups += [Name(name), " ", private.number("split", name), ", "]
    rows: list[tuple[str, Line]] = [
        ("Epsilon", epsilon if epsilon.value is not None else "infinite: there is no noise"),
        ("Delta", scientific(private.number("delta"))),
        ("Whose data", str(found["unit"])),
        ("After rounds", private.number("rounds")),
        ("Neighbours", str(found["adjacency"])),
        ("Taken for granted", str(found["sampling"])),
        ("Noise multiplier", private.number("noise_multiplier")),
        ("of each group", groups[:-1] or "-"),
        ("Accountant", f"{found['accountant']}, {found['library']}"),
        ("Kind of noise", str(run.config.get("privacy", _NO_PRIVACY))),
    ]
    if found.get("noise_generator"):
        rows.append(("Noise generator", str(found["noise_generator"])))
    if "noise_tail" in found:
        rows.append(("Probability beyond its tail", scientific(private.number("noise_tail"))))
    beside: list[Block] = []
    if found["remarks"]:
        beside = [Paragraph("To be known beside:"), Bullets(list(map(str, found["remarks"])))]
    return [
        Paragraph("Differential privacy of training:"),
        Facts(rows),
        Paragraph("It does not cover"),
        Bullets(list(map(str, found["not_covered"]))),
        *beside,
    ]


def write_run_report(
    folder: Path,
    command: Optional[Sequence[str]] = None,
    title: Optional[str] = None,
) -> Path:
    """Writes the report of the run in a folder, and returns its path.

    Args:
        folder: The folder of a complete run.
        command: What trains it again; None if that is not known.
    """
    path, run = folder / REPORT, read_run(folder)
    heading = title_of(path, title, usual_title(run))
    write_text(path, rendered(run_page(run, command, heading)))
    return path


@contextmanager
def with_results_kept(folder: Path) -> Iterator[None]:
    """Says of a report that cannot be written that nothing else is lost."""
    try:
        yield
    except UserError as e:
        raise UserError(
            f"{e}; the results in {folder} are complete, and ./run report --run={folder} makes the "
            "report once that is mended"
        ) from e
