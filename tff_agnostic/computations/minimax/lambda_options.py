"""How lambda may move, as settings: along the domains' losses, to CVaR's worst mixture, or not.

Sources: Mohri, Sivek, Suresh 2019, section 3 and equation (6); for CVaR Laguel et al. 2021.
"""

import dataclasses
from collections.abc import Sequence
from typing import Callable, ClassVar, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.computations.minimax.cvar import cvar_step
from tff_agnostic.computations.minimax.lambda_updates import (
    DomainWeightUpdate,
    Step,
    entropy_step,
    euclidean_step,
    no_step,
)
from tff_agnostic.errors import UserError
from tff_agnostic.lambda_sets.lambda_set import LambdaSet
from tff_agnostic.lambda_sets.options import LambdaSetOptions
from tff_agnostic.registry import Registry
from tff_agnostic.settings import setting

# Updates that are no steps along the losses have no learning rate. To give one beside fixed weights
# is harmless: `frontier` has both.
_WITH_LEARNING_RATE = ("exponentiated_gradient", "projected_gradient", "fixed")

# What mu chi2(lambda || m_bar) is to the objective: equation (6) of Mohri et al. adds it within the
# maximum, which is the pessimism of their bound, and a convex function of lambda; taken away, it is
# the penalty of distributionally robust optimisation, and keeps lambda near m_bar.
CHI2_SIGNS: Registry[float] = Registry("sign of chi2", {"penalty": -1.0, "pessimism": 1.0})


class _Way(NamedTuple):
    """A way for lambda to move.

    Attributes:
        build: (settings, training mixture) -> the update.
        check: Raises a `UserError` if it does not go with other settings.
        starts_at_training_mixture: Whether this is lambda_0 where none is given.
    """

    build: Callable[["LambdaOptions", Sequence[float]], DomainWeightUpdate]
    check: Callable[["LambdaOptions"], None] = lambda options: None
    starts_at_training_mixture: bool = False


def _always(update: DomainWeightUpdate) -> _Way:
    return _Way(lambda options, training_mixture: update)


def _check_cvar(options: "LambdaOptions") -> None:
    flag = f"--domain_weight_update={options.domain_weight_update}"
    if options.lambda_set != "simplex":
        raise UserError(
            f"--lambda_set: expected simplex with {flag}, whose --domain_conformity is a set of "
            f"mixtures itself, found {options.lambda_set}"
        )
    if options.chi2_weight:
        raise UserError(
            f"--chi2_weight: expected 0 with {flag}, which finds the largest of a sum that is "
            f"linear in lambda, found {options.chi2_weight:g}"
        )


def _cvar(options: "LambdaOptions", training_mixture: Sequence[float]) -> DomainWeightUpdate:
    def update(lambda_set: LambdaSet, step: Step) -> tf.Tensor:
        del lambda_set
        return cvar_step(
            step.coordinates,
            step.slopes,
            training_mixture,
            options.domain_conformity,
            options.cvar_rate,
            step.is_free,
        )

    return update


DOMAIN_WEIGHT_UPDATES: Registry[_Way] = Registry(
    "domain weight update",
    {
        "exponentiated_gradient": _always(entropy_step),
        "projected_gradient": _always(euclidean_step),
        "fixed": _always(no_step),
        # The one mixture that every level allows.
        "cvar": _Way(_cvar, _check_cvar, starts_at_training_mixture=True),
    },
)


@dataclasses.dataclass(frozen=True)
class LambdaOptions(LambdaSetOptions):
    """How lambda moves, and where; part of the settings of algorithms that have it.

    Attributes:
        domain_weight_update: Name of a member of `DOMAIN_WEIGHT_UPDATES`; made with None, it is
            `own_update`.
        domain_learning_rate: gamma_lambda; positive.
        domain_conformity: theta of CVaR, in (0, 1].
        cvar_rate: How far lambda goes to CVaR's worst mixture in a round, in (0, 1]. A setting of
            its own: tasks set gamma_lambda for steps along losses, to 0.03 and less.
        initial_domain_weights: lambda_0, p numbers on the simplex; if None, uniform, or in a ball
            and for CVaR the training mixture. A weight of 0 stays 0 under exponentiated gradient.
            A hull starts from the mean of its mixtures.
        freeze_absent_domains: Keep the weight of a domain without examples in a round. Otherwise
            its loss counts as 0, as section 4 of Ro et al. has it (line 11 as printed is 0/0).
        chi2_weight: mu of a term mu chi2(lambda || m_bar) of the objective, at least 0.
        chi2_sign: Member of `CHI2_SIGNS`.
    """

    domain_weight_update: Optional[str] = setting(
        None,
        "How lambda moves; if not given, as the algorithm's paper has it: exponentiated_gradient "
        "in AgnosticFedAvg, projected_gradient in Stochastic-AFL.",
        choices=DOMAIN_WEIGHT_UPDATES,
    )
    domain_learning_rate: float = setting(
        0.01,
        "gamma_lambda.",
        positive=True,
        only_with=("domain_weight_update", _WITH_LEARNING_RATE),
    )
    domain_conformity: float = setting(
        0.5,
        "theta of CVaR over domains, in (0, 1]: lambda is up to 1 / theta times the training "
        "mixture in any domain; 1 is the training mixture, a small theta the worst domain.",
        positive=True,
        at_most=1.0,
        only_with=("domain_weight_update", ("cvar",)),
    )
    cvar_rate: float = setting(
        0.1,
        "How far lambda goes to the worst mixture of CVaR's level in a round, in (0, 1]; 1 is all "
        "the way.",
        positive=True,
        at_most=1.0,
        only_with=("domain_weight_update", ("cvar",)),
    )
    initial_domain_weights: Optional[tuple[float, ...]] = setting(
        None,
        "lambda_0, comma-separated; if not given, uniform, or in a ball and for CVaR the training "
        "mixture.",
        only_with=("lambda_set", ("simplex", "box", "ball")),
    )
    freeze_absent_domains: bool = setting(
        False,
        "Keep lambda of a domain without examples in a round; otherwise its loss counts as 0.",
        only_with=("lambda_set", ("simplex",)),
    )
    chi2_weight: float = setting(
        0.0, "mu of a term mu chi2(lambda || training mixture) of the objective.", at_least=0.0
    )
    chi2_sign: str = setting(
        "penalty",
        "Whether that term is a penalty, which keeps lambda near the training mixture, or a "
        "pessimism, as equation (6) of Mohri et al. has it, which drives it away.",
        choices=CHI2_SIGNS,
    )
    # How lambda moves in the algorithm's paper.
    own_update: ClassVar[str] = "exponentiated_gradient"

    def __post_init__(self) -> None:
        """Puts `own_update` where no update is given, and checks; see `Settings`."""
        if self.domain_weight_update is None:
            object.__setattr__(self, "domain_weight_update", self.own_update)
        super().__post_init__()
        self.way().check(self)

    def way(self) -> _Way:
        """Returns how lambda moves."""
        assert self.domain_weight_update is not None
        return DOMAIN_WEIGHT_UPDATES[self.domain_weight_update]
