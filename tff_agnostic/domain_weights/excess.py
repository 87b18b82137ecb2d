"""Excess losses: lambda follows L_k - b_k, the loss of domain k beyond its own baseline b_k.

If domains differ in difficulty, the largest loss is not the worst service: a domain with noise as
labels has the largest loss with any model. With b_k near the minimum loss that a model of this kind
can have on domain k, the excess is the regret of the domain, and the worst mixture is the mixture
with the largest regret: "minimax regret" of Agarwal and Zhang 2022, "Minimax Regret Optimization
for Robust Machine Learning under Distribution Shift", and of Xie et al. 2023, "DoReMi", section 2,
which clips it at 0. AgnosticFedAvg is b = 0.

The arithmetic is in a pure function on vectors of one entry per domain, usable with NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tff_agnostic.base.later import tf

TRAINING, HELDOUT = "training", "heldout"
# Baselines computed from the training clients: losses of a model of each domain alone, or of the
# best constant predictor.
OWN, TRIVIAL = "own", "trivial"


def excess_losses(
    losses: tf.Tensor, baselines: Optional[Sequence[float]], is_measured: tf.Tensor
) -> tf.Tensor:
    """Returns max(L_k - b_k, 0), and 0 for a domain that was not measured.

    A domain below its baseline counts as at its baseline: estimates from few examples are often too
    low, and a negative excess would take lambda from a domain because of noise.

    Args:
        losses: L, the mean losses of the domains in a round, float32 [p].
        baselines: b, p numbers; None returns the losses unchanged.
        is_measured: Whether each domain has a loss in the round, bool [p].
    """
    if baselines is None:
        return losses
    excess = tf.maximum(losses - tf.constant(baselines, tf.float32), 0.0)
    return tf.where(is_measured, excess, 0.0)
