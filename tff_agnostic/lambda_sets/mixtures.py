"""Files of named mixtures of domains."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json

_SUM_TOLERANCE = 1e-3


def read_mixtures(
    path: str, domain_names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    """Reads a JSON object of mixtures by name, each an object of weights by domain.

    A domain that a mixture does not name has the weight 0.

    Args:
        path: The file.
        domain_names: Names of the p domains.

    Returns:
        The mixtures' names, and their weights of all domains in the order of `domain_names`.

    Raises:
        UserError: If it cannot be read, names a domain that there is not, holds something that is
            no mixture, or holds a mixture or a domain of it twice.
    """
    try:
        content = read_json(Path(path))
    except UserError as e:
        raise UserError(f"--mixtures={e}") from None
    if not content:
        raise UserError(f"--mixtures={path}: expected at least one mixture, found none")
    mixtures = {
        name: _mixture(f"--mixtures={path}: {name}", weights, domain_names)
        for name, weights in content.items()
    }
    names_of: dict[tuple[float, ...], str] = {}
    for name, weights in mixtures.items():
        if weights in names_of:
            raise UserError(
                f"--mixtures={path}: expected different mixtures, found {names_of[weights]!r} and "
                f"{name!r} of the same weights"
            )
        names_of[weights] = name
    return tuple(mixtures), tuple(mixtures.values())


def _mixture(where: str, weights: Any, domain_names: Sequence[str]) -> tuple[float, ...]:
    if not isinstance(weights, dict):
        raise UserError(
            f'{where}: expected weights by domain, as in {{"{domain_names[0]}": 1}}, found '
            f"{type(weights).__name__}"
        )
    unknown = [name for name in weights if name not in domain_names]
    if unknown:
        raise UserError(
            f"{where}: expected domains of {', '.join(domain_names)}, found {', '.join(unknown)}"
        )
    for name, weight in weights.items():
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight <= 1 + _SUM_TOLERANCE:
            raise UserError(f"{where}: expected a number from 0 to 1 for {name}, found {weight!r}")
    total = math.fsum(weights.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise UserError(f"{where}: expected weights that sum to 1, found {total:g}")
    return tuple(weights.get(name, 0.0) / total for name in domain_names)
