"""Settings of Lambda, and the registry of its kinds."""

import dataclasses
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.lambda_sets.ball import Ball
from tff_agnostic.lambda_sets.box import Box
from tff_agnostic.lambda_sets.hull import Hull
from tff_agnostic.lambda_sets.lambda_set import LambdaSet
from tff_agnostic.lambda_sets.mixtures import read_mixtures
from tff_agnostic.lambda_sets.simplex import Simplex
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

_TOLERANCE = 1e-6


def _simplex(
    options: "LambdaSetOptions", domain_names: Sequence[str], training_mixture: np.ndarray
) -> LambdaSet:
    del options, domain_names, training_mixture
    return Simplex()


def _box(
    options: "LambdaSetOptions", domain_names: Sequence[str], training_mixture: np.ndarray
) -> LambdaSet:
    del training_mixture
    p = len(domain_names)
    lower = _per_domain("--lambda_lower", options.lambda_lower, p, default=0.0)
    upper = _per_domain("--lambda_upper", options.lambda_upper, p, default=1.0)
    for name, low, high in zip(domain_names, lower, upper):
        if low > high:
            raise UserError(
                f"--lambda_lower, --lambda_upper: expected lower <= upper for every domain, found "
                f"{low:g} > {high:g} for {name}"
            )
    if lower.sum() > 1 + _TOLERANCE:
        raise UserError(
            "--lambda_lower: expected numbers that sum to at most 1, as mixtures sum to 1, found "
            f"{lower.sum():g}: the set would be empty"
        )
    if upper.sum() < 1 - _TOLERANCE:
        raise UserError(
            "--lambda_upper: expected numbers that sum to at least 1, as mixtures sum to 1, found "
            f"{upper.sum():g}: the set would be empty"
        )
    return Box(tuple(lower.tolist()), tuple(upper.tolist()))


def _hull(
    options: "LambdaSetOptions", domain_names: Sequence[str], training_mixture: np.ndarray
) -> LambdaSet:
    del training_mixture
    if options.mixtures is None:
        raise UserError(
            "--mixtures: expected a JSON file of named mixtures with --lambda_set=hull, found none"
        )
    return Hull(*read_mixtures(options.mixtures, domain_names))


def _ball(
    options: "LambdaSetOptions", domain_names: Sequence[str], training_mixture: np.ndarray
) -> LambdaSet:
    del domain_names
    return Ball(tuple(training_mixture.tolist()), options.lambda_radius)


# (settings, names of the domains, their shares of the training examples) -> the set.
LambdaSetBuilder = Callable[["LambdaSetOptions", Sequence[str], np.ndarray], LambdaSet]
LAMBDA_SETS: Registry[LambdaSetBuilder] = Registry(
    "set of lambda", {"simplex": _simplex, "box": _box, "hull": _hull, "ball": _ball}
)


@dataclasses.dataclass(frozen=True)
class LambdaSetOptions(Settings):
    """Over which mixtures the worst is taken; part of the settings of algorithms that have lambda.

    Attributes:
        lambda_set: Member of `LAMBDA_SETS`.
        lambda_lower: Least weight of each domain in a box; one number stands for all domains.
        lambda_upper: Largest weight of each domain, in the same way.
        mixtures: JSON file of the mixtures that span a hull; see `read_mixtures`.
        lambda_radius: rho of a ball around the training mixture m_bar: the largest
            chi2(lambda || m_bar).
    """

    lambda_set: str = setting(
        "simplex",
        "The mixtures of domains of which the worst counts: all (simplex), those within bounds per "
        "domain (box), those between given mixtures (hull), or those near the training mixture "
        "(ball).",
        choices=LAMBDA_SETS,
    )
    lambda_lower: Optional[tuple[float, ...]] = setting(
        None,
        "Least lambda of each domain, comma-separated, or one number for all; 0 if not given.",
        only_with=("lambda_set", ("box",)),
    )
    lambda_upper: Optional[tuple[float, ...]] = setting(
        None,
        "Largest lambda of each domain, comma-separated, or one number for all; 1 if not given.",
        only_with=("lambda_set", ("box",)),
    )
    mixtures: Optional[str] = setting(
        None,
        'JSON file of named mixtures, {"name": {"domain": weight, ...}, ...}.',
        is_path=True,
        only_with=("lambda_set", ("hull",)),
    )
    lambda_radius: float = setting(
        1.0,
        "Largest chi-squared distance of lambda from the training mixture.",
        positive=True,
        only_with=("lambda_set", ("ball",)),
    )

    def build_lambda_set(
        self, domain_names: Sequence[str], training_mixture: np.ndarray
    ) -> LambdaSet:
        """Returns Lambda.

        Args:
            domain_names: Of the p domains.
            training_mixture: m_bar, the domains' shares of the training examples, float64 [p].

        Raises:
            UserError: If the set is empty, or does not fit the domains.
        """
        return LAMBDA_SETS[self.lambda_set](self, domain_names, training_mixture)


def _per_domain(
    flag: str, values: Optional[Sequence[float]], num_domains: int, default: float
) -> np.ndarray:
    given = np.array([default] if values is None else values, np.float64)
    if given.shape not in ((1,), (num_domains,)):
        raise UserError(
            f"{flag}: expected one number, or {num_domains}, one per domain, found {given.size}"
        )
    if np.any(given < 0) or np.any(given > 1):
        raise UserError(f"{flag}: expected numbers from 0 to 1, found {given.tolist()}")
    return np.broadcast_to(given, [num_domains]).copy()
