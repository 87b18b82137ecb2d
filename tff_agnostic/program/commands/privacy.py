"""The command privacy: epsilon, noise or rounds of a private run before training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from tabulate import tabulate

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import make_folder, write_json
from tff_agnostic.privacy.accountant import (
    PrivacyAccountant,
    PrivacyStatement,
    noise_for_epsilon,
    noise_warning,
    rounds_for_budget,
    statement,
)
from tff_agnostic.program.commands.command import Command, CommandArguments
from tff_agnostic.program.commands.privacy_options import AccountingOptions
from tff_agnostic.program.options.flag_table import Needs, check_needs
from tff_agnostic.program.options.flags import option_values

# Flags that only have an effect with certain values of another flag.
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
}
# Factors of the requested noise and rounds in the table of neighbouring settings.
_NOISE_FACTORS = (0.5, 1.0, 2.0)
_ROUND_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# Printed noise multipliers are multiples of one over this number.
_SHOWN = 10**6
# Epsilons of at least this value are printed with 4 significant digits.
_LARGE = 10**6


@dataclasses.dataclass(frozen=True)
class Answer:
    """The missing one of noise, epsilon and rounds, with the guarantee.

    Attributes:
        sentence: The answer in words.
        options: Settings of the run.
        statement: The guarantee.
    """

    sentence: str
    options: AccountingOptions
    statement: PrivacyStatement

    def note(self) -> Optional[str]:
        """Returns a warning if a cohort is small for the noise; otherwise None."""
        clients_per_round = self.options.clients_per_round
        if clients_per_round is None:
            return None
        guarantee = self.statement
        return noise_warning(guarantee.noise_multiplier, clients_per_round, guarantee.rounds)

    def table(self) -> str:
        """Returns the guarantee and its assumptions."""
        text: str = tabulate(self.statement.rows(), tablefmt="plain", disable_numparse=True)
        return text

    def to_json(self) -> dict[str, Any]:
        """Returns the content of privacy.json."""
        return {
            "answer": self.sentence,
            "settings": option_values(self.options),
            **self.statement.to_dict(),
        }

    def neighbours(self) -> str:
        """Returns a table of epsilon for other numbers of rounds and other noise multipliers."""
        guarantee = self.statement
        noises = [factor * guarantee.noise_multiplier for factor in _NOISE_FACTORS]
        accounts = [_accountant(self.options, z, guarantee.accountant) for z in noises]
        numbers = {max(1, round(factor * guarantee.rounds)) for factor in _ROUND_FACTORS}
        rows = [
            [f"{rounds}", *(_shown(_epsilon(account, rounds)) for account in accounts)]
            for rounds in sorted(numbers)
        ]
        headers = ["rounds", *(f"epsilon with noise {z:.4g}" for z in noises)]
        text: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
        return text


def answer(options: AccountingOptions) -> Answer:
    """Returns the missing one of --noise_multiplier, --target_epsilon and --rounds."""
    missing = [name for name in _QUESTIONS if getattr(options, name) is None]
    if len(missing) != 1:
        given = ", ".join(f"--{name}" for name in _QUESTIONS if name not in missing) or "none"
        raise UserError(
            "privacy: expected two of --noise_multiplier, --target_epsilon and --rounds, which "
            f"determine the third, found {given}"
        )
    return _QUESTIONS[missing[0]](options)


def _settings_epsilon(options: AccountingOptions) -> Answer:
    assert options.noise_multiplier is not None and options.rounds is not None
    guarantee = _statement(options, options.noise_multiplier, options.rounds)
    return Answer(f"epsilon is {_shown(guarantee.epsilon)}", options, guarantee)


def _noise_for_epsilon(options: AccountingOptions) -> Answer:
    assert options.target_epsilon is not None and options.rounds is not None
    noise = noise_for_epsilon(
        lambda z: [options.mechanism(z)],
        [options.rounds],
        options.target_epsilon,
        options.known_delta,
        options.privacy_accountant,
    )
    # Round up: the printed noise must suffice.
    noise = math.ceil(noise * _SHOWN) / _SHOWN
    guarantee = _statement(options, noise, options.rounds)
    return Answer(f"the noise multiplier is {noise:.6f}", options, guarantee)


def _rounds_for_budget(options: AccountingOptions) -> Answer:
    assert options.noise_multiplier is not None and options.target_epsilon is not None
    rounds = rounds_for_budget(
        options.mechanism(options.noise_multiplier),
        options.target_epsilon,
        options.known_delta,
        options.privacy_accountant,
    )
    guarantee = _statement(options, options.noise_multiplier, rounds)
    return Answer(f"the budget lasts for {counted(rounds, 'round')}", options, guarantee)


# Functions by the missing setting.
_QUESTIONS: dict[str, Callable[[AccountingOptions], Answer]] = {
    "noise_multiplier": _noise_for_epsilon,
    "target_epsilon": _settings_epsilon,
    "rounds": _rounds_for_budget,
}


def _accountant(
    options: AccountingOptions, noise_multiplier: float, name: Optional[str]
) -> PrivacyAccountant:
    return PrivacyAccountant([options.mechanism(noise_multiplier)], options.known_delta, name)


def _shown(epsilon: float) -> str:
    return f"{epsilon:.4f}" if epsilon < _LARGE else f"{epsilon:.4g}"


def _epsilon(accountant: PrivacyAccountant, rounds: int) -> float:
    try:
        return accountant.epsilon(rounds)
    except UserError:
        # No account exists for this many rounds.
        return math.inf


def _statement(
    options: AccountingOptions, noise_multiplier: float, rounds: int
) -> PrivacyStatement:
    account = _accountant(options, noise_multiplier, options.privacy_accountant)
    return statement(account, [rounds], options.noise_multipliers(noise_multiplier))


@dataclasses.dataclass(frozen=True)
class PlanningOptions(AccountingOptions):
    """The flags of `privacy`.

    Attributes:
        output_dir: Folder for privacy.json; without it, nothing is written.
    """

    output_dir: Optional[Path] = None


def plan_privacy(given: CommandArguments) -> None:
    """Prints the answer, the guarantee, and epsilon of other rounds and noise."""
    options = given.args
    check_needs(
        NEEDS, {**option_values(options)}, [flag for flag in PRIVACY.options if flag in given.names]
    )
    result = answer(options)
    print(f"{result.sentence}\n\n{result.table()}")
    note = result.note()
    if note is not None:
        print(f"\nnote: {note}")
    print(f"\n{result.neighbours()}")
    if options.output_dir is not None:
        make_folder(options.output_dir)
        file = options.output_dir / "privacy.json"
        write_json(file, result.to_json())
        print(f"\nfile: {file}")


PRIVACY = Command("privacy", PlanningOptions, plan_privacy, lambda nothing: None)
