"""Excess losses: lambda follows L_k - b_k, the loss of domain k beyond its own baseline b_k.

If domains differ in difficulty, the largest loss does not show where a model is worst: a domain
with random labels has the largest loss with any model. If b_k is near the minimum loss that the
model can have on domain k, the excess is the domain's regret, and the worst mixture maximises the
regret.
Sources: "minimax regret" of Agarwal and Zhang 2022, "Minimax Regret Optimization for Robust Machine
Learning under Distribution Shift"; Xie et al. 2023, "DoReMi", section 2, which clips the excess at
0. AgnosticFedAvg has b = 0.

The function is pure, takes vectors with an entry per domain, and also accepts NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tff_agnostic.base.later import tf

TRAINING, HELDOUT = "training", "heldout"
# Baselines computed from the training clients: for each domain, the loss of a model trained only on
# it, or of the best constant predictor.
OWN, TRIVIAL = "own", "trivial"


def excess_losses(
    losses: tf.Tensor, baselines: Optional[Sequence[float]], is_measured: tf.Tensor
) -> tf.Tensor:
    """Returns max(L_k - b_k, 0); 0 for a domain that was not measured.

    A loss below its baseline gives 0: estimates from few examples are often too low, and noise
    should not take lambda away from a domain.

    Args:
        losses: L, the mean losses of the domains in a round, float32 [p].
        baselines: Baselines b, p numbers; None to return the losses unchanged.
        is_measured: Whether each domain has a loss in the round, bool [p].
    """
    if baselines is None:
        return losses
    excess = tf.maximum(losses - tf.constant(baselines, tf.float32), 0.0)
    return tf.where(is_measured, excess, 0.0)
