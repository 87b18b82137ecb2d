"""Evaluations whose sums have noise: how much, what they spend, and what is said of it."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.private.generators import NOISE_GENERATORS, key_like
from tff_agnostic.aggregations.private.options import ServerNoiseOptions
from tff_agnostic.aggregations.private.private_release import PrivateState
from tff_agnostic.aggregations.private.private_sum import PrivateSum
from tff_agnostic.computations.aggregated import AggregatedExchange
from tff_agnostic.computations.evaluation import EvaluationOutput
from tff_agnostic.errors import UserError
from tff_agnostic.files import digest_of
from tff_agnostic.models.functional import Model
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.calibration import check_delta, default_delta, noise_for_epsilon
from tff_agnostic.privacy.mechanism import CentralNoise, Mechanism
from tff_agnostic.privacy.sampling import ADD_OR_REMOVE, REPLACE_ONE, EveryClient
from tff_agnostic.privacy.statement import PrivacyStatement, statement
from tff_agnostic.program.evaluation.evaluation_release import (
    consistent,
    evaluation_shares,
    private_measurement,
)
from tff_agnostic.tasks.task import Task

OF_DATA_REMARKS = (
    "what is printed of the data before the first round, such as domains of few examples, is "
    "exact, and so is what result.json and report.html say of it"
)
# Keeps the noise of evaluations apart from that of training.
_EVALUATIONS = b"evaluations"
_OF_WHAT = "evaluations"
_OF_OTHER_NAMES = "test clients are taken for others than training clients: no name is among both"


class PrivateEvaluation:
    """The noise of evaluations, and its account.

    An evaluation of a model is one release, of all test clients or of a sample that depends on
    nobody's data.

    Args:
        options: Settings; `private_evaluation` is set.
        task: Whose test clients are evaluated.
        inner: How clipped answers are summed.
        planned: Evaluations of a model that --evaluation_target_epsilon is for.
        training: What training releases, if test clients may be training clients too: fleets are
            neighbours as there.

    Attributes:
        aggregation: Sums with noise.
        measurement: What clients are asked, with bounds.
        bounds: Of what a client answers.
        mechanism: What an evaluation releases.
        num_shared: Clients by whose names there are both training and test clients.
        delta: The delta of the guarantee of test clients.

    Raises:
        UserError: If the settings do not go together, or no noise reaches what was asked for.
    """

    def __init__(
        self,
        options: ServerNoiseOptions,
        task: Task,
        inner: Aggregation,
        planned: int,
        training: Optional[Mechanism] = None,
    ) -> None:
        check_metric_bounds(task.model)
        multiplier, target = options.evaluation_noise_multiplier, options.evaluation_target_epsilon
        if (multiplier is None) == (target is None):
            found = "none" if multiplier is None else "both"
            raise UserError(
                "--private_evaluation: expected one of --evaluation_noise_multiplier and "
                f"--evaluation_target_epsilon, found {found}"
            )
        num_clients = len(task.test.client_ids)
        self.delta = default_delta(num_clients) if options.delta is None else options.delta
        check_delta(self.delta, num_clients)
        self.num_shared = len({*task.test.client_ids} & {*task.train.client_ids})
        adjacency = ADD_OR_REMOVE if training is None else training.adjacency
        sampling = EveryClient(adjacency, 2.0 if adjacency == REPLACE_ONE else 1.0)
        if multiplier is None:
            assert target is not None
            multiplier = noise_for_epsilon(
                lambda z: [CentralNoise(float(z), sampling)], [planned], target, self.delta
            )
        self.mechanism = CentralNoise(float(multiplier), sampling)
        self.measurement = private_measurement(
            task.model, task.num_domains, options.evaluation_clients_share > 0
        )
        self.aggregation = _aggregation(options, inner, self.measurement, self.mechanism)
        self.bounds = self.measurement.exchange.bounds(self.aggregation.limits)
        self._split_name = task.test_split
        self._account = PrivacyAccountant([self.mechanism], self.delta)
        self._noise_seed = options.noise_seed

    def digest(self, client_ids: Sequence[str]) -> str:
        """Returns a digest of who is evaluated, and of the bounds and the size of the noise.

        An evaluation that differs in any of these needs noise of its own: with equal noise the
        difference of two samples is exact, and two sizes of one noise give the noise away.

        Args:
            client_ids: Names of the clients, in order.
        """
        groups = self.aggregation.groups(self.bounds)
        factors = self.aggregation.noise_factors(self.bounds)
        scales = [(group.name, group.limit, factor) for group, factor in zip(groups, factors)]
        z = self.mechanism.noise_multiplier
        return digest_of([self._split_name, list(client_ids), z, scales])

    def state(self, key: tuple[int, ...], release: int) -> PrivateState:
        """Returns what the server knows of an evaluation.

        Args:
            key: See `evaluation_key`.
            release: Number of the model that is evaluated.
        """
        return PrivateState(
            np.array(key, np.int64),
            np.int64(release),
            np.float64(self.mechanism.noise_multiplier),
            np.zeros([0], np.float32),
        )

    def consistent(self, output: EvaluationOutput) -> EvaluationOutput:
        """Returns noisy sums in which what is said of clients could be so, NumPy."""
        return tf.nest.map_structure(np.asarray, consistent(output, self.bounds))

    def epsilon(self, releases: int) -> float:
        """Returns the epsilon of test clients after so many evaluations of a model."""
        return self._account.epsilon(releases)

    def statement(self, releases: int) -> PrivacyStatement:
        """Returns what is promised to test clients after so many evaluations of a model."""
        exchange = AggregatedExchange(self.measurement.exchange, self.aggregation)
        groups = self.aggregation.groups(exchange.bounds)
        factors = self.aggregation.noise_factors(exchange.bounds)
        z = self.mechanism.noise_multiplier
        split = {group.name: factor * z for group, factor in zip(groups, factors)}
        remarks = [OF_DATA_REMARKS, *([] if self.num_shared else [_OF_OTHER_NAMES])]
        remarks += self.aggregation.remarks
        if self._noise_seed is not None:
            remarks.append(
                f"noise is that of --noise_seed={self._noise_seed}: whoever knows it can take the "
                "noise away, so nothing is private"
            )
        return statement(
            self._account,
            [releases],
            split,
            remarks,
            evaluations_are_private=True,
            of_what=_OF_WHAT,
            noise_generator=self.aggregation.generator.title,
        )


def check_metric_bounds(model: Model) -> None:
    """Checks that every metric says how much an example can add to its sums.

    Raises:
        UserError: If a metric has no bound: no noise would hide an example.
    """
    for metric in model.metrics:
        for name in ("max_numerator", "max_denominator"):
            if not math.isfinite(getattr(metric, name)):
                raise UserError(
                    f"--privacy: metric {metric.name}: expected a finite {name}, the most that an "
                    f"example adds to a sum, found {getattr(metric, name)}: what has no bound is "
                    "hidden by no noise"
                )


def evaluation_key(noise_key: Any, place: str) -> tuple[int, ...]:
    """Returns the secret of an evaluation, which tells nothing of the one it is made of.

    Args:
        noise_key: The run's secret, int64, as long as its generator's keys.
        place: What tells the evaluation from all others of the run.
    """
    secret = np.asarray(noise_key, np.int64).tobytes()
    digest = hashlib.sha256(_EVALUATIONS + secret + place.encode()).digest()
    return key_like(noise_key, digest)


def _aggregation(
    options: ServerNoiseOptions, inner: Aggregation, measurement: Any, mechanism: Mechanism
) -> PrivateSum:
    generator = NOISE_GENERATORS[options.noise_generator]
    release = PrivateSum(
        inner,
        options,
        "central",
        expected_clients=1.0,
        # Both are in the state that each evaluation gets.
        noise_key=generator.key(bytes(generator.key_bytes)),
        noise_multiplier=mechanism.noise_multiplier,
    )
    bounds = measurement.exchange.bounds(release.limits)
    groups = [group.name for group in release.groups(bounds)]
    shares = evaluation_shares(groups, options.evaluation_clients_share)
    return dataclasses.replace(release, shares=shares)
