"""Settings of Delta-FL (Laguel et al. 2021): for which tails, and how clients learn of them."""

import dataclasses
from typing import Callable, NamedTuple

from tff_agnostic.computations.client_weighting import ClientWeightingOptions
from tff_agnostic.computations.kept_out import DomainLossOptions
from tff_agnostic.computations.local_training import LocalTrainingOptions
from tff_agnostic.computations.server_optimizers import ServerOptimizerOptions
from tff_agnostic.computations.tails.cuts import exact_cut, paper_cut
from tff_agnostic.computations.tails.smoothing import Smoothed
from tff_agnostic.computations.tails.thresholds import Binned, Threshold, Tracked
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry
from tff_agnostic.settings import setting


class _Way(NamedTuple):
    """How clients learn whether they train.

    Attributes:
        threshold: (theta, settings) -> the threshold of a level.
        surveys: Whether losses are asked for in an exchange of their own.
    """

    threshold: Callable[[float, "DeltaFlOptions"], Threshold]
    surveys: bool = False


# (theta, settings) -> the threshold of a level, made of a histogram.
BOUNDARIES: Registry[Callable[[float, "DeltaFlOptions"], Threshold]] = Registry(
    "boundary",
    {
        "exact": lambda theta, options: Binned(theta, exact_cut),
        "paper": lambda theta, options: Binned(theta, paper_cut),
        "smooth": lambda theta, options: Smoothed(theta, options.smoothing),
    },
)


def _of_histogram(theta: float, options: "DeltaFlOptions") -> Threshold:
    return BOUNDARIES[options.boundary](theta, options)


def _tracked(theta: float, options: "DeltaFlOptions") -> Threshold:
    return Tracked(theta, options.threshold_rate)


THRESHOLDS: Registry[_Way] = Registry(
    "threshold",
    {
        "survey": _Way(_of_histogram, surveys=True),
        "lagged": _Way(_of_histogram),
        "tracked": _Way(_tracked),
    },
)


@dataclasses.dataclass(frozen=True)
class DeltaFlOptions(
    LocalTrainingOptions, ServerOptimizerOptions, ClientWeightingOptions, DomainLossOptions
):
    """Settings of Delta-FL.

    Attributes:
        conformity: The levels theta, each in (0, 1], all different; the first one's model is what
            tables and plots of a single model show.
        threshold: Member of `THRESHOLDS`.
        boundary: Member of `BOUNDARIES`.
        smoothing: nu of the smoothed objective, in the unit of the loss.
        threshold_rate: r of a tracked threshold.
    """

    conformity: tuple[float, ...] = setting(
        (0.5,),
        "Levels theta of Delta-FL, comma-separated: the part of the clients, by weight, those with "
        "the largest losses, that a model is trained for; 1 is FedAvg. Each level has a model.",
    )
    threshold: str = setting(
        "survey",
        "How clients learn whether they train: from a survey of the losses, an exchange of its "
        "own; or in one exchange, from the losses of the round before (lagged), or from a "
        "threshold that moves by factors (tracked).",
        choices=THRESHOLDS,
    )
    boundary: str = setting(
        "exact",
        "What clients at the threshold count: what is left of theta (exact); all, as printed "
        "(paper); or, above it, more with their loss, of the smoothed objective (smooth).",
        choices=BOUNDARIES,
        only_with=("threshold", ("survey", "lagged")),
    )
    smoothing: float = setting(
        0.1,
        "How far above the threshold a loss is from which on a client counts in full.",
        positive=True,
        only_with=("boundary", ("smooth",)),
    )
    threshold_rate: float = setting(
        0.2,
        "How fast a tracked threshold moves.",
        positive=True,
        only_with=("threshold", ("tracked",)),
    )

    def __post_init__(self) -> None:
        """Checks the levels too; see `Settings`."""
        super().__post_init__()
        if not self.conformity:
            raise UserError("--conformity: expected levels in (0, 1], found none")
        for theta in self.conformity:
            if not 0 < theta <= 1:
                raise UserError(f"--conformity: expected levels in (0, 1], found {theta:g}")
        # Models, columns and plots are called so: levels that round to one name are one.
        names = [f"{theta:g}" for theta in self.conformity]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"--conformity: expected different levels, found {twice} twice")

    def thresholds(self) -> tuple[Threshold, ...]:
        """Returns the threshold of each level."""
        return tuple(THRESHOLDS[self.threshold].threshold(theta, self) for theta in self.conformity)
