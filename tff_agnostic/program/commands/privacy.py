"""The command privacy: computes epsilon, noise or rounds of a private run before training."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Optional

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
# Factors by which the table of neighbouring settings multiplies the noise and the number of rounds.
_NOISE_FACTORS = (0.5, 1.0, 2.0)
_ROUND_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# Printed noise multipliers are rounded up to multiples of 1 / _SHOWN.
_SHOWN = 10**6
# Epsilons of at least this value are printed with 4 significant digits.
_LARGE = 10**6


@dataclasses.dataclass(frozen=True)
class PlanningOptions(AccountingOptions):
    """The flags of `privacy`.

    Attributes:
        output_dir: Folder for privacy.json; without it, nothing is written.
    """

    output_dir: Optional[Path] = None


def plan_privacy(given: CommandArguments) -> None:
    """Prints the answer, the privacy guarantee, and epsilon for other rounds and noise."""
    options: PlanningOptions = given.args
    check_needs(
        NEEDS, option_values(options), [flag for flag in PRIVACY.options if flag in given.names]
    )
    answer, guarantee = answered(options)
    print(f"{answer}\n\n{tabulate(guarantee.rows(), tablefmt='plain', disable_numparse=True)}")
    if options.clients_per_round is not None:
        warning = noise_warning(
            guarantee.noise_multiplier, options.clients_per_round, guarantee.rounds
        )
        if warning is not None:
            print(f"\nnote: {warning}")
    print(f"\n{neighbours(options, guarantee)}")
    if options.output_dir is not None:
        make_folder(options.output_dir)
        file = options.output_dir / "privacy.json"
        content = {"answer": answer, "settings": option_values(options), **guarantee.to_dict()}
        write_json(file, content)
        print(f"\nfile: {file}")


def answered(options: AccountingOptions) -> tuple[str, PrivacyStatement]:
    """Returns the one of noise, epsilon and rounds that is not given, and the guarantee."""
    noise, epsilon, rounds = options.noise_multiplier, options.target_epsilon, options.rounds
    numbers = {"noise_multiplier": noise, "target_epsilon": epsilon, "rounds": rounds}
    delta, accountant = options.known_delta, options.privacy_accountant
    if noise is not None and rounds is not None and epsilon is None:
        guarantee = _statement(options, noise, rounds)
        return f"epsilon is {_shown(guarantee.epsilon)}", guarantee
    if epsilon is not None and rounds is not None and noise is None:
        exact = noise_for_epsilon(
            lambda z: [options.mechanism(z)], [rounds], epsilon, delta, accountant
        )
        # Round the noise up, as the printed value must suffice.
        noise = math.ceil(exact * _SHOWN) / _SHOWN
        return f"the noise multiplier is {noise:.6f}", _statement(options, noise, rounds)
    if noise is not None and epsilon is not None and rounds is None:
        rounds = rounds_for_budget(options.mechanism(noise), epsilon, delta, accountant)
        guarantee = _statement(options, noise, rounds)
        return f"the budget lasts for {counted(rounds, 'round')}", guarantee
    given = ", ".join(f"--{name}" for name, value in numbers.items() if value is not None)
    raise UserError(
        "privacy: expected two of --noise_multiplier, --target_epsilon and --rounds, which "
        f"determine the third, found {given or 'none'}"
    )


def neighbours(options: AccountingOptions, guarantee: PrivacyStatement) -> str:
    """Returns a table of epsilon for other numbers of rounds and other noise multipliers."""
    noises = [factor * guarantee.noise_multiplier for factor in _NOISE_FACTORS]
    accounts = [_accountant(options, z, guarantee.accountant) for z in noises]
    numbers = {max(1, round(factor * guarantee.rounds)) for factor in _ROUND_FACTORS}
    rows = [
        [f"{rounds}", *(_shown(_epsilon(account, rounds)) for account in accounts)]
        for rounds in sorted(numbers)
    ]
    headers = ["rounds", *(f"epsilon with noise {z:.4g}" for z in noises)]
    text: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
    return text


def _accountant(
    options: AccountingOptions, noise_multiplier: float, name: Optional[str]
) -> PrivacyAccountant:
    return PrivacyAccountant([options.mechanism(noise_multiplier)], options.known_delta, name)


def _statement(
    options: AccountingOptions, noise_multiplier: float, rounds: int
) -> PrivacyStatement:
    account = _accountant(options, noise_multiplier, options.privacy_accountant)
    return statement(account, [rounds], options.noise_multipliers(noise_multiplier))


def _epsilon(accountant: PrivacyAccountant, rounds: int) -> float:
    try:
        return accountant.epsilon(rounds)
    except UserError:
        # The accountant cannot compose this many rounds.
        return math.inf


def _shown(epsilon: float) -> str:
    return f"{epsilon:.4f}" if epsilon < _LARGE else f"{epsilon:.4g}"


PRIVACY = Command("privacy", PlanningOptions, plan_privacy)
