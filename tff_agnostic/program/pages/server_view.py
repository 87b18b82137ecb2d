"""What the server saw of the clients: every answer, sums only, or sums with noise."""

from collections.abc import Mapping
from typing import Any

from tff_agnostic.program.pages.blocks import (
    Block,
    Bullets,
    Facts,
    Line,
    Name,
    Paragraph,
    Part,
    Section,
)
from tff_agnostic.program.pages.details import NOT_RECORDED
from tff_agnostic.program.pages.results import scientific
from tff_agnostic.program.pages.run_record import RunRecord

_PLAIN = "plain"
_NO_PRIVACY = "none"
# Noise that clients add, and not the server.
_DISTRIBUTED = "distributed"


def server_section(run: RunRecord) -> Section:
    """Returns what reached the server, and what is promised of it."""
    return Section("server", "What the server saw", [*_sums(run), *_privacy(run)])


def _sums(run: RunRecord) -> list[Block]:
    if run.config.get("aggregation", _PLAIN) == _PLAIN:
        return [
            Paragraph(
                "Plain sums: training and evaluation use sums over clients only, but nothing keeps "
                "whoever adds them up from seeing each client's answer. Models, losses, counts and "
                "metrics of a client are readable to the server."
            )
        ]
    security: Mapping[str, Any] = run.about.get("security") or {}
    lines: list[Line] = []
    if security:
        secure, plain = len(security["secure"]), security["plain"]
        lines.append(
            f"{secure} values of a client reach the server in secure sums, "
            + (f"{len(plain)} in plain ones: {', '.join(plain)}." if plain else "none in others.")
        )
    else:
        lines.append(
            f"Which values of a client reach the server in secure sums was {NOT_RECORDED}."
        )
    lines += [
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
    clients = run.config.get("secure_min_clients")
    of_few = f"A sum is of {clients} clients at least; cohorts of fewer are refused."
    return [
        *([of_few] if clients is not None else []),
        "Sums are exact: how many examples each domain has, what a domain held by one client of a "
        "cohort has, and what two sums differ in is not hidden by them.",
    ]


def _privacy(run: RunRecord) -> list[Block]:
    found = run.result.get("privacy")
    if not found:
        return [
            Paragraph(
                "No differential privacy: the model may have learnt something of single clients by "
                "heart, and nothing bounds how much."
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
        ("Accountant", str(found["accountant"])),
        ("Kind of noise", str(run.config.get("privacy", _NO_PRIVACY))),
        *_of_generator(found),
    ]
    return [
        Paragraph("Differential privacy of training:"),
        Facts(rows),
        Paragraph("It does not cover"),
        Bullets([str(text) for text in found["not_covered"]]),
        *([Paragraph("To be known beside:")] if found["remarks"] else []),
        *([Bullets([str(text) for text in found["remarks"]])] if found["remarks"] else []),
    ]


def _of_generator(private: Mapping[str, Any]) -> list[tuple[str, Line]]:
    # Runs of earlier releases do not name it.
    found = private.get("noise_generator")
    return [("Noise generator", str(found))] if found else []
