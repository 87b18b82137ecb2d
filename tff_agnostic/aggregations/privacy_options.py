"""Settings of private sums."""

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
        noise_multiplier: z: the standard deviation of the noise of all that a client answers in a
            round, as a multiple of its bound; None if `target_epsilon` is given.
        target_epsilon: The epsilon that the noise is worked out for.
        delta: None for one over ten times the number of training clients.
        clip_norm: Bound of the l2 norm of a client's model delta; the first one, if adaptive.
        clipping: Whether it stays.
        clip_quantile: Which share of the clients' deltas an adaptive clip norm comes to lie above.
        clip_learning_rate: How fast it moves.
        update_share: Which share of the budget of a round updates have.
        absent_below: Below how many standard deviations of its noise a sum that others are divided
            by counts as zero, as the number of examples of a domain.
        noise_generator: What noise is made of.
        noise_seed: In place of a secret key, so that noise can be repeated.
    """

    noise_multiplier: Optional[float] = setting(
        None,
        "z: standard deviation of a round's noise as a multiple of what one client can change; or "
        "give --target_epsilon. With 0 nothing is private.",
        zero_or_at_least=LEAST_NOISE,
    )
    target_epsilon: Optional[float] = setting(
        None, "The epsilon that the noise is worked out for.", positive=True
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
        "Share of clients whose delta is within an adaptive clip norm in the end.",
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
        "Standard deviations of its noise below which a sum counts as zero if others are divided "
        "by it, as a domain's number of examples.",
        at_least=0.0,
    )
    noise_generator: str = setting(
        "philox",
        "What noise is made of: philox, TensorFlow's generator for simulations; or secure, "
        "ChaCha20, a cryptographic one, with noise in whole steps of a grid instead of float32. "
        "Exports have secure if nothing is given.",
        choices=NOISE_GENERATORS,
    )
    noise_seed: Optional[int] = setting(
        None,
        "For experiments: seeds the noise, which is then no secret; every report says so.",
        at_least=0,
    )


_WITH_EVALUATION = ("private_evaluation", (True,))


@dataclasses.dataclass(frozen=True)
class ServerNoiseOptions(PrivacyOptions):
    """Settings of noise that a trusted server adds.

    Attributes:
        joint_clipping: Whether all that a client sends is clipped as one vector, in which each
            group has its part; otherwise each group is clipped by itself.
        private_evaluation: Whether the sums of evaluations have noise, too.
        evaluation_noise_multiplier: z of each evaluation; None if `evaluation_target_epsilon` is
            given.
        evaluation_target_epsilon: What all evaluations of a run may spend together.
        evaluation_clients_share: Which share of an evaluation's budget has what it says of clients,
            such as percentiles; the sums over domains have the rest.
    """

    joint_clipping: bool = setting(
        False,
        "Clip all that a client sends as one vector, in which groups are scaled by their bounds "
        "and shares, instead of each group by itself: with the same noise and epsilon, less is cut "
        "of clients that need not all of their bounds.",
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
        "The epsilon of all private evaluations of a run together, from which their noise is "
        "worked out.",
        positive=True,
        only_with=_WITH_EVALUATION,
    )
    evaluation_clients_share: float = setting(
        0.2,
        "Share of a private evaluation's budget for means and percentiles over clients; sums over "
        "domains have the rest. With 0 nothing is said of clients.",
        at_least=0.0,
        below=1.0,
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
        secret_participation: With Poisson cohorts, whether clients that the coin leaves out answer
            too, so that nobody learns who took part, nor how many.
        answering_clients: M, how many clients answer a round then; None for all.
        privacy_min_clients: Clients whose noise a round has at the least; None for all that answer
            a round, and c - 2 sqrt(c) of Poisson cohorts of a public size that is c on average.
    """

    integer_clip: float = setting(
        2.0**14,
        "Steps of the integers that clients send in the bound of each group: the finer, the less "
        "rounding adds, and the more bits they have.",
        positive=True,
    )
    secret_participation: bool = secret_participation_setting(
        # What runs of earlier releases did, and did not account for.
        as_before=False
    )
    answering_clients: Optional[int] = answering_clients_setting(
        only_with=("secret_participation", (True,))
    )
    privacy_min_clients: Optional[int] = setting(
        None,
        "Clients whose noise a round has at the least: with fewer it is as one without clients. If "
        "not given, all that answer a round; c - 2 sqrt(c) with --nosecret_participation.",
        at_least=1,
    )
