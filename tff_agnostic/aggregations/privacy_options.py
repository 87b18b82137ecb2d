"""Settings of private sums."""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.aggregations.noise_generators import NOISE_GENERATORS
from tff_agnostic.privacy.mechanisms import LEAST_NOISE, update_share_setting
from tff_agnostic.privacy.sampling import answering_clients_setting, secret_participation_setting
from tff_agnostic.registry import Registry
from tff_agnostic.settings import setting

# Whether the clip norm follows the norms of the updates.
CLIPPINGS = Registry("clipping", {"fixed": False, "adaptive": True})


@dataclasses.dataclass(frozen=True)
class PrivacyOptions(ClientLimits):
    """Settings of differential privacy; the unit is a client with all its examples.

    Attributes:
        noise_multiplier: z: the standard deviation of a round's noise as a multiple of the bound of
            a client's output; None if `target_epsilon` is given.
        target_epsilon: The epsilon that the noise is computed for.
        delta: None for one over ten times the number of training clients.
        clip_norm: Bound of the l2 norm of a client's model delta; the first one, if adaptive.
        clipping: Whether it stays.
        clip_quantile: The quantile of the clients' norms that an adaptive clip norm tracks.
        clip_learning_rate: How fast it moves.
        update_share: Share of a round's budget for updates.
        absent_below: Number of standard deviations of its noise below which a denominator, such as
            a domain's number of examples, counts as zero.
        noise_generator: Generator of the noise.
        noise_seed: Seed in place of a secret key, so that noise can be repeated.
    """

    noise_multiplier: Optional[float] = setting(
        None,
        "z: standard deviation of a round's noise as a multiple of what one client can change; or "
        "give --target_epsilon. With 0 nothing is private.",
        zero_or_at_least=LEAST_NOISE,
    )
    target_epsilon: Optional[float] = setting(
        None, "The epsilon that the noise is computed for.", positive=True
    )
    delta: Optional[float] = setting(
        None,
        "The delta of (epsilon, delta); one over ten times the training clients if not given.",
        positive=True,
        below=1.0,
    )
    clip_norm: float = setting(
        1.0,
        "Bound of the l2 norm of a client's model delta; the first one, if adaptive.",
        positive=True,
    )
    clipping: str = setting(
        "fixed",
        "Whether the clip norm stays, or follows a quantile of the deltas' norms.",
        choices=CLIPPINGS,
    )
    clip_quantile: float = setting(
        0.5,
        "Quantile of the deltas' norms that an adaptive clip norm tracks.",
        at_least=0.0,
        at_most=1.0,
        only_with=("clipping", ("adaptive",)),
    )
    clip_learning_rate: float = setting(
        0.2,
        "How fast an adaptive clip norm moves.",
        positive=True,
        only_with=("clipping", ("adaptive",)),
    )
    update_share: float = update_share_setting()
    absent_below: float = setting(
        2.0,
        "A denominator, such as a domain's number of examples, counts as zero below so many "
        "standard deviations of its noise.",
        at_least=0.0,
    )
    noise_generator: str = setting(
        "philox",
        "Generator of the noise: philox, TensorFlow's, for simulations; or secure, ChaCha20, a "
        "cryptographic one, with noise in whole steps of a grid instead of float32. The default of "
        "exports is secure.",
        choices=NOISE_GENERATORS,
    )
    noise_seed: Optional[int] = setting(
        None,
        "For experiments: seeds the noise, which is then not secret; every report warns of it.",
        at_least=0,
    )


_WITH_EVALUATION = ("private_evaluation", (True,))


@dataclasses.dataclass(frozen=True)
class ServerNoiseOptions(PrivacyOptions):
    """Settings of noise that a trusted server adds.

    Attributes:
        joint_clipping: Whether all that a client sends is clipped as one vector, in which each
            group has its part; otherwise each group is clipped alone.
        private_evaluation: Whether the sums of evaluations have noise, too.
        evaluation_noise_multiplier: z of each evaluation; None if `evaluation_target_epsilon` is
            given.
        evaluation_target_epsilon: Epsilon of all evaluations of a run together.
        evaluation_clients_share: Share of an evaluation's budget for statistics over clients, such
            as percentiles; the sums over domains have the rest.
        evaluation_statistics: Whether answers are counted by class, too, as a part of the rest.
    """

    joint_clipping: bool = setting(
        False,
        "Clip all that a client sends as one vector, in which groups are scaled by their bounds "
        "and shares, instead of each group alone: with the same noise and epsilon, clients that "
        "do not reach all of their bounds lose less.",
    )
    private_evaluation: bool = setting(
        False,
        "Clip and noise the sums of evaluations too, with a budget of their own: test clients then "
        "have a guarantee as well.",
    )
    evaluation_noise_multiplier: Optional[float] = setting(
        None,
        "z of each private evaluation of a model; or give --evaluation_target_epsilon.",
        zero_or_at_least=LEAST_NOISE,
        only_with=_WITH_EVALUATION,
    )
    evaluation_target_epsilon: Optional[float] = setting(
        None,
        "The epsilon of all private evaluations of a run together, for which their noise is "
        "computed.",
        positive=True,
        only_with=_WITH_EVALUATION,
    )
    evaluation_clients_share: float = setting(
        0.2,
        "Share of a private evaluation's budget for means and percentiles over clients; sums over "
        "domains have the rest. With 0 there are no statistics over clients.",
        at_least=0.0,
        below=1.0,
        only_with=_WITH_EVALUATION,
    )
    evaluation_statistics: bool = setting(
        False,
        "Count answers by class in private evaluations, too: they share the budget of the sums "
        "over domains, which get more noise.",
        only_with=_WITH_EVALUATION,
    )


@dataclasses.dataclass(frozen=True)
class TreeOptions(ServerNoiseOptions):
    """Settings of tree aggregation.

    Attributes:
        tree_restart_every: Rounds of one tree; None for a single tree over all rounds.
    """

    tree_restart_every: Optional[int] = setting(
        None,
        "Rounds after which tree aggregation begins a new tree; never if not given.",
        at_least=1,
    )


@dataclasses.dataclass(frozen=True)
class DistributedOptions(PrivacyOptions):
    """Settings of noise that clients add before a secure sum.

    Attributes:
        integer_clip: c: steps of the integers in the bound of each group.
        secret_participation: With Poisson cohorts, whether clients that the coin leaves out report
            too, so that it stays secret which clients took part, and how many.
        answering_clients: M, how many clients report in a round then; None for all.
        privacy_min_clients: Least number of clients with noise in a round; None for all that
            report, and c - 2 sqrt(c) for Poisson cohorts of a public size that is c on average.
    """

    integer_clip: float = setting(
        2.0**14,
        "Steps of the integers that clients send in the bound of each group: with more steps "
        "rounding adds less, and integers have more bits.",
        positive=True,
    )
    secret_participation: bool = secret_participation_setting(
        # Runs of earlier releases did so, without accounting for it.
        as_before=False
    )
    answering_clients: Optional[int] = answering_clients_setting(
        only_with=("secret_participation", (True,))
    )
    privacy_min_clients: Optional[int] = setting(
        None,
        "Least number of clients with noise in a round: a round of fewer is one without clients. "
        "By default all that report; c - 2 sqrt(c) with --nosecret_participation.",
        at_least=1,
    )
