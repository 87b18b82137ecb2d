"""Epsilon, noise or rounds before any training."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import make_folder, write_json, write_text
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.formatting import csv_text
from tff_agnostic.privacy.accountant import (
    PrivacyAccountant,
    PrivacyStatement,
    drowned,
    noise_for_epsilon,
    rounds_for_budget,
    statement,
)
from tff_agnostic.program.commands.command import Command, Given
from tff_agnostic.program.options.flag_table import Needs, check_needs
from tff_agnostic.program.options.flags import values_of
from tff_agnostic.program.reports.figures import draw_grid, look, new_figure, save
from tff_agnostic.program.studies.privacy_options import AccountingOptions, AuditOptions

# Flags that have an effect with some values of another one only.
NEEDS: Needs = {
    "clients_per_round": ("privacy", ("central", "distributed")),
    "cohort_sampling": ("privacy", ("central", "distributed")),
    "max_participations": ("privacy", ("tree",)),
    "min_separation": ("privacy", ("tree",)),
    "tree_restart_every": ("privacy", ("tree",)),
    "distributed_noise": ("privacy", ("distributed",)),
    "privacy_dimension": ("privacy", ("distributed",)),
    "integer_clip": ("privacy", ("distributed",)),
    "participation": ("privacy", ("distributed",)),
    "audit_runs": ("audit", (True,)),
    "audit_seed": ("audit", (True,)),
}
# Of a release's noise and rounds, in tables beside what was asked about.
_NOISE_FACTORS = (0.5, 1.0, 2.0)
_ROUND_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# Points of a curve.
_NUM_POINTS = 9
# Parts of 1 to which a noise multiplier is told.
_SHOWN = 10**6
# Epsilons that are shown in fewer digits.
_LARGE = 10**6


@dataclasses.dataclass(frozen=True)
class Curves:
    """Epsilon after numbers of rounds, for several noise multipliers.

    Attributes:
        rounds: Numbers of rounds, ascending.
        epsilons: By noise multiplier, one of each number of rounds; infinite where none is known.
        asked: The noise multiplier that was asked about.
    """

    rounds: tuple[int, ...]
    epsilons: dict[float, tuple[float, ...]]
    asked: float

    def table(self) -> str:
        """Returns a line for each number of rounds."""
        headers = ["rounds", *(f"epsilon with noise {z:.4g}" for z in self.epsilons)]
        rows = [
            [f"{n}", *(_shown(of[i]) for of in self.epsilons.values())]
            for i, n in enumerate(self.rounds)
        ]
        text: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
        return text

    def to_csv(self) -> str:
        """Returns the same for programs; lines end as RFC 4180 has it."""
        rows: list[list[Any]] = [["rounds", *(f"epsilon/{z}" for z in self.epsilons)]]
        rows += [[n, *(of[i] for of in self.epsilons.values())] for i, n in enumerate(self.rounds)]
        return csv_text(rows, "\r\n")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What was asked, and the guarantee that is the answer.

    Attributes:
        sentence: The answer in words.
        options: What was asked about.
        statement: The guarantee.
    """

    sentence: str
    options: AccountingOptions
    statement: PrivacyStatement

    def note(self) -> Optional[str]:
        """Returns what has to be known of the noise, if anything; it is of sampled cohorts."""
        clients_per_round = self.options.clients_per_round
        if clients_per_round is None:
            return None
        found = self.statement
        return drowned(found.noise_multiplier, clients_per_round, found.rounds)

    def table(self) -> str:
        """Returns the guarantee and what it rests on."""
        text: str = tabulate(self.statement.rows(), tablefmt="plain", disable_numparse=True)
        return text

    def to_json(self) -> dict[str, Any]:
        """Returns all of it but the curves."""
        return {
            "answer": self.sentence,
            "settings": values_of(self.options),
            **self.statement.to_dict(),
        }

    def neighbours(self) -> Curves:
        """Returns epsilon of other rounds and other noise, a few of each, for a table."""
        rounds = self.statement.rounds
        numbers = {max(1, round(factor * rounds)) for factor in _ROUND_FACTORS}
        return self._curves(sorted(numbers))

    def curves(self) -> Curves:
        """Returns epsilon of each number of rounds up to four times as many, for a figure."""
        most = 4 * self.statement.rounds
        return self._curves(np.unique(np.geomspace(1, most, _NUM_POINTS).round().astype(int)))

    def _curves(self, rounds: Sequence[int]) -> Curves:
        asked = self.statement.noise_multiplier
        epsilons = {}
        for factor in _NOISE_FACTORS:
            known = _accountant(self.options, factor * asked, self.statement.accountant)
            epsilons[factor * asked] = tuple(_epsilon(known, int(n)) for n in rounds)
        return Curves(tuple(map(int, rounds)), epsilons, asked)


def answer(options: AccountingOptions) -> Answer:
    """Returns what follows from two of --noise_multiplier, --target_epsilon and --rounds."""
    missing = [name for name in _QUESTIONS if getattr(options, name) is None]
    if len(missing) != 1:
        given = ", ".join(f"--{name}" for name in _QUESTIONS if name not in missing) or "none"
        raise UserError(
            "privacy: expected two of --noise_multiplier, --target_epsilon and --rounds, which "
            f"determine the third, found {given}"
        )
    return _QUESTIONS[missing[0]](options)


def _epsilon_of_settings(options: AccountingOptions) -> Answer:
    assert options.noise_multiplier is not None and options.rounds is not None
    found = _statement(options, options.noise_multiplier, options.rounds)
    return Answer(f"epsilon is {_shown(found.epsilon)}", options, found)


def _noise_for_epsilon(options: AccountingOptions) -> Answer:
    assert options.target_epsilon is not None and options.rounds is not None
    noise = noise_for_epsilon(
        lambda z: [options.mechanism(z)],
        [options.rounds],
        options.target_epsilon,
        options.known_delta,
        options.privacy_accountant,
    )
    # Rounded up, so that who types it has the epsilon.
    noise = math.ceil(noise * _SHOWN) / _SHOWN
    found = _statement(options, noise, options.rounds)
    return Answer(f"the noise multiplier is {noise:.6f}", options, found)


def _rounds_for_budget(options: AccountingOptions) -> Answer:
    assert options.noise_multiplier is not None and options.target_epsilon is not None
    rounds = rounds_for_budget(
        options.mechanism(options.noise_multiplier),
        options.target_epsilon,
        options.known_delta,
        options.privacy_accountant,
    )
    found = _statement(options, options.noise_multiplier, rounds)
    return Answer(f"the budget lasts for {counted(rounds, 'round')}", options, found)


# By what is asked for, which is what is not given.
_QUESTIONS: dict[str, Callable[[AccountingOptions], Answer]] = {
    "noise_multiplier": _noise_for_epsilon,
    "target_epsilon": _epsilon_of_settings,
    "rounds": _rounds_for_budget,
}


def _accountant(
    options: AccountingOptions, noise_multiplier: float, name: Optional[str]
) -> PrivacyAccountant:
    return PrivacyAccountant([options.mechanism(noise_multiplier)], options.known_delta, name)


def _shown(epsilon: float) -> str:
    # Of a large one its digits say nothing.
    return f"{epsilon:.4f}" if epsilon < _LARGE else f"{epsilon:.4g}"


def _epsilon(accountant: PrivacyAccountant, rounds: int) -> float:
    try:
        return accountant.epsilon(rounds)
    except UserError:
        # More rounds than were asked about: no account is worked out for so many.
        return math.inf


def _statement(
    options: AccountingOptions, noise_multiplier: float, rounds: int
) -> PrivacyStatement:
    known = _accountant(options, noise_multiplier, options.privacy_accountant)
    return statement(known, [rounds], options.noise_multipliers(noise_multiplier))


def figure(curves: Curves, found: PrivacyStatement) -> matplotlib.figure.Figure:
    """Returns the curves, with the point that was asked about.

    Args:
        curves: What to draw; what is infinite is left out.
        found: The guarantee of that point.
    """
    result = new_figure(8, 4.5)
    axes = result.subplots()
    rounds = np.array(curves.rounds)
    for i, (noise, values) in enumerate(curves.epsilons.items()):
        epsilons = np.array(values)
        known = np.isfinite(epsilons) & (epsilons > 0)
        style = "-" if noise == curves.asked else "--"
        label = f"noise multiplier {noise:.4g}"
        axes.plot(rounds[known], epsilons[known], style, color=look(i).color, label=label)
    if 0 < found.epsilon < np.inf:
        label = f"{counted(found.rounds, 'round')}: epsilon {found.epsilon:.4g}"
        axes.plot(found.rounds, found.epsilon, "o", color="black", label=label)
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel="round", ylabel=f"epsilon for delta {found.delta:.3g}")
    draw_grid(axes)
    axes.legend()
    return result


@dataclasses.dataclass(frozen=True)
class PlanningOptions(AuditOptions, AccountingOptions):
    """The flags of `privacy`.

    Attributes:
        output_dir: Folder for privacy.json, privacy.csv and privacy.png; none is written if not
            given.
    """

    output_dir: Optional[Path] = None


def plan_privacy(given: Given) -> int:
    """Prints the answer, what it rests on, and epsilon of other rounds and noise.

    Returns:
        The exit status: 1 where an audit refutes the claim.
    """
    own = given.own
    check_needs(
        NEEDS, {**values_of(own)}, [flag for flag in PRIVACY.options if flag in given.names]
    )
    found = answer(own)
    print(found.sentence)
    print(f"\n{found.table()}")
    note = found.note()
    if note is not None:
        print(f"\nnote: {note}")
    print(f"\n{found.neighbours().table()}")
    audited = None
    if own.audit:
        # Imported here, with TensorFlow.
        from tff_agnostic.program.studies.privacy_audit import audit_of_answer

        audited = audit_of_answer(found, own)
        print(f"\n{audited.sentence}\n\n{audited.table()}")
    if own.output_dir is not None:
        facts = found.to_json()
        if audited is not None:
            facts = {**facts, "audit": audited.to_json()}
        _write(own.output_dir, found, facts)
    if audited is not None and audited.is_refuted:
        print(f"error: {audited.sentence}", file=sys.stderr)
        return 1
    return 0


def _write(folder: Path, found: Answer, facts: Mapping[str, Any]) -> None:
    make_folder(folder)
    curves = found.curves()
    files = [folder / f"privacy.{ending}" for ending in ("json", "csv", "png")]
    json_file, csv_file, image = files
    write_json(json_file, facts)
    write_text(csv_file, curves.to_csv())
    save(figure(curves, found.statement), image)
    print(f"\nfiles: {', '.join(map(str, files))}")


PRIVACY = Command("privacy", PlanningOptions, plan_privacy, lambda status: status)
