"""Settings that have no effect with the other settings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from tff_agnostic.algorithms.delta_fl import DeltaFlOptions
from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights.ascent import Cvar, LambdaOptions
from tff_agnostic.domain_weights.excess import OWN
from tff_agnostic.program.options.flag_table import Needs, check_needs
from tff_agnostic.program.options.user_algorithm import is_user_file
from tff_agnostic.program.runs.options import RunConfig

if TYPE_CHECKING:
    from tff_agnostic.program.runs.spec import RunSettings

_STEPS = ("exponentiated_gradient", "projected_gradient")
_MOVING = (*_STEPS, "cvar")
# Settings that only have an effect with certain values of another setting.
NEEDS: Needs = {
    "boundary": ("threshold", ("survey", "refined", "lagged")),
    "loss_estimate": ("lambda_update", _MOVING),
    "budget": ("predictor_sampling", ("uniform", "weighted")),
    "uniform_share": ("predictor_sampling", ("weighted",)),
    "predictor_draw": ("predictor_sampling", ("uniform", "weighted")),
    "lambda_learning_rate": ("lambda_update", _STEPS),
    "lambda_initial": ("lambda_set", ("simplex", "box", "ball")),
    "lambda_absent": ("lambda_update", _MOVING),
    "lambda_baselines": ("lambda_update", _MOVING),
    "lambda_baseline_losses": ("lambda_update", _MOVING),
}
# Flags without effect if theta is 1: then every client trains.
_THRESHOLD_FLAGS = ("boundary", "threshold")
# Flags without effect if the CVaR level is 1: lambda then moves to the training mixture, whatever
# the losses are, and starts there by default.
_CVAR_FLAGS = ("lambda_absent", "lambda_baselines")


def check_effect(flag: str, run: RunSettings) -> None:
    """Rejects a given setting that has no effect with the other settings of a run."""
    check_needs(NEEDS, run.settings(), [flag])
    ignored = (
        _ignored_by_level(flag, run.algorithm)
        or _ignored_by_baselines(flag, run)
        or _ignored_by_noise(flag, run.config)
    )
    if ignored is not None:
        raise UserError(f"--{flag} has no effect {ignored}")


def _ignored_by_level(flag: str, algorithm: Any) -> Optional[str]:
    """Returns the end of the message "--FLAG has no effect ..."; None if the setting is used."""
    if isinstance(algorithm, DeltaFlOptions):
        if flag in _THRESHOLD_FLAGS and algorithm.theta == (1.0,):
            return "with --theta=1: it needs a level below 1"
    elif isinstance(algorithm, LambdaOptions) and flag in _CVAR_FLAGS:
        player = algorithm.lambda_
        is_one_mixture = isinstance(player.update, Cvar) and player.update.level == 1
        if is_one_mixture and player.initial is None:
            needed = "a level below 1, or --lambda_initial"
            return f"with --lambda_update=cvar:level=1: it needs {needed}"
    return None


def _ignored_by_baselines(flag: str, run: RunSettings) -> Optional[str]:
    if flag != "lambda_baseline_losses" or not isinstance(run.algorithm, LambdaOptions):
        return None
    baselines = run.algorithm.lambda_.baselines
    if baselines == OWN or run.baseline_domains:
        return None
    if baselines is None:
        by = "without --lambda_baselines"
    elif isinstance(baselines, str):
        by = f"with --lambda_baselines={baselines}"
    else:
        by = "with numbers in --lambda_baselines"
    return f"{by}: it needs --lambda_baselines={OWN}, or a file or a run there"


def _ignored_by_noise(flag: str, config: RunConfig) -> Optional[str]:
    # Private updates are clipped by their norm. The bound of a coordinate only matters for the
    # rounding of secure sums if clients add no noise, and possibly in a user's algorithm.
    rounds = config.aggregation == "secure" and config.privacy != "distributed"
    if flag != "limit_update" or config.privacy == "none" or rounds:
        return None
    if is_user_file(config.algorithm):
        return None
    return (
        f"with --privacy={config.privacy}: it needs --aggregation=secure and --privacy=none; "
        "--clip_norm bounds private updates"
    )
