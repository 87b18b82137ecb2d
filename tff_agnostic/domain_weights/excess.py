"""Excess losses: lambda follows L_k - b_k, what domain k loses beyond its own baseline b_k.

Where domains differ in difficulty, the largest loss is not the worst service: a domain whose labels
are noise has it whatever the model does. With b_k near the least loss that a model of this kind can
have on domain k, the excess is the regret of the domain, and the worst mixture is that of the
largest regret: "minimax regret" of Agarwal and Zhang 2022, "Minimax Regret Optimization for Robust
Machine Learning under Distribution Shift", and of Xie et al. 2023, "DoReMi", section 2, which clips
it at 0. AgnosticFedAvg is b = 0.

The arithmetic is in a pure function on vectors of one entry per domain, usable with NumPy arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Optional, Union

from tff_agnostic.base.options import OneOf, Options
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry

TRAINING, HELDOUT = "training", "heldout"
# Words of --lambda_baselines.
OWN, TRIVIAL = "own", "trivial"
BASELINE_LOSSES: Registry[str] = Registry(
    "losses of baselines",
    {
        TRAINING: "on the examples that are trained on, as lambda's own signal is",
        HELDOUT: "on those that are held out",
    },
)


def excess_losses(
    losses: tf.Tensor, baselines: Optional[Sequence[float]], is_measured: tf.Tensor
) -> tf.Tensor:
    """Returns max(L_k - b_k, 0), and 0 of a domain that was not measured.

    A domain below its baseline counts as one at its baseline: estimates from few examples are often
    below, and a negative excess would take lambda from a domain for its noise.

    Args:
        losses: L, the mean losses of the domains in a round, float32 [p].
        baselines: b, p numbers; None returns the losses as they are.
        is_measured: Which domains have a loss in the round, bool [p].
    """
    if baselines is None:
        return losses
    excess = tf.maximum(losses - tf.constant(baselines, tf.float32), 0.0)
    return tf.where(is_measured, excess, 0.0)


@dataclasses.dataclass(frozen=True)
class BaselineOptions(Options):
    """What lambda's losses are compared with; part of the settings of algorithms that can.

    Attributes:
        lambda_baselines: b of excess losses: lambda follows L - b in place of L. One number per
            domain, comma-separated; a complete run's folder, for its losses; own (train, compare):
            a reference run of each domain by itself, kept in baselines.json, which can be named in
            turn; or trivial (train, compare): class shares, means or unigrams of each domain. Only
            with lambda_update exponentiated_gradient, projected_gradient or cvar.
        baseline_losses: Which losses of runs are baselines. Only with lambda_update
            exponentiated_gradient, projected_gradient or cvar.
    """

    lambda_baselines: Union[tuple[float, ...], str, None] = None
    baseline_losses: Annotated[str, OneOf(BASELINE_LOSSES)] = TRAINING

    def baselines(self, num_domains: int) -> Optional[tuple[float, ...]]:
        """Returns b, p numbers; None where lambda follows the losses themselves."""
        found, flag = self.lambda_baselines, "--lambda_baselines"
        if found is None:
            return None
        if isinstance(found, str):
            raise UserError(
                f"{flag}: expected {num_domains} numbers, one per domain, or a file of them, found "
                f"{found!r}: train and compare make them and leave them in baselines.json"
            )
        if len(found) != num_domains:
            raise UserError(
                f"{flag}: expected {num_domains} numbers, one per domain, found {len(found)}"
            )
        # Without any, losses below 0 stay what they are, too.
        return found if any(found) else None
