"""The configuration of a run: one frozen dataclass, from which the flags are made."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tensorflow_federated as tff

from tff_agnostic import settings
from tff_agnostic.computations.aggregation import (
    AGGREGATIONS,
    Aggregation,
    SecureBounds,
)
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.domain_weights import (
    DOMAIN_WEIGHT_UPDATES,
    DomainWeightsParams,
)
from tff_agnostic.computations.local_training import NORMALIZERS, LocalTrainingParams
from tff_agnostic.computations.registry import ALGORITHMS
from tff_agnostic.computations.server_optimizers import SERVER_OPTIMIZERS
from tff_agnostic.data.sampling import domain_strata
from tff_agnostic.errors import UserError
from tff_agnostic.models.precision import PRECISIONS
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import setting

COHORT_SAMPLINGS = Registry("cohort sampling", {"uniform": None, "stratified": domain_strata})
_AGNOSTIC = ("algorithm", ("agnostic_fed_avg",))
_TARGET_ONLY = ("algorithm", ("fed_avg_target_only",))
_SECURE = ("aggregation", ("secure",))
_ADAPTIVE = ("server_optimizer", ("adam", "yogi", "adagrad"))


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that determines the numbers of a run, beside the options of its task.

    Every field is a flag of the same name; its help text is in the field's metadata. Tasks replace
    the defaults given here with their own (`TaskSpec.defaults`).
    """

    algorithm: str = setting("agnostic_fed_avg", "What to train with.", choices=ALGORITHMS)
    runtime: str = setting(
        "cohort",
        "Where rounds are executed: in this process, in Ray's workers, or in TFF's runtime, the "
        "reference.",
        choices=RUNTIMES,
    )
    aggregation: str = setting("plain", "How clients are summed.", choices=AGGREGATIONS)
    precision: str = setting(
        "float32",
        "What layers compute in. Mixed precision is for GPUs and TPUs; weights stay float32.",
        choices=PRECISIONS,
    )
    seed: int = setting(0, "Seeds data splits, cohorts, weights, shuffling.", at_least=0)
    rounds: int = setting(100, "T, communication rounds.", at_least=1)
    clients_per_round: int = setting(10, "c, clients in a round.", at_least=1)
    cohort_sampling: str = setting(
        "uniform",
        "How a round's clients are drawn, without replacement: uniformly, or so that every domain "
        "has its share of them (a client's domain being that of most of its examples).",
        choices=COHORT_SAMPLINGS,
    )
    client_learning_rate: float = setting(0.1, "gamma_w of the clients' SGD.", positive=True)
    client_epochs: int = setting(1, "E, passes over a client's data in a round.", at_least=1)
    batch_size: int = setting(20, "B, examples of one SGD step.", at_least=1)
    batch_normalizer: str = setting(
        "client",
        "What a batch's loss is divided by: the weight of the whole client (as in the paper: one "
        "epoch is about one step on the client's mean loss), or the batch's own (as in FedAvg).",
        choices=NORMALIZERS,
    )
    max_examples: Optional[int] = setting(
        None, "How many examples of a training client are used, the first ones.", at_least=1
    )
    shuffle: bool = setting(True, "Whether clients shuffle their examples before each epoch.")
    server_optimizer: str = setting("sgd", "Applies a round's update.", choices=SERVER_OPTIMIZERS)
    server_learning_rate: float = setting(1.0, "Of the server optimizer.", positive=True)
    server_momentum: float = setting(
        0.9,
        "Momentum (also nesterov's), or beta_1 of adam and yogi.",
        at_least=0.0,
        below=1.0,
        only_with=("server_optimizer", ("momentum", "nesterov", "adam", "yogi")),
    )
    server_epsilon: float = setting(
        1e-3, "Of adam, yogi and adagrad.", positive=True, only_with=_ADAPTIVE
    )
    domain_weight_update: str = setting(
        "exponentiated_gradient",
        "How lambda moves.",
        choices=DOMAIN_WEIGHT_UPDATES,
        only_with=_AGNOSTIC,
    )
    domain_learning_rate: float = setting(0.01, "gamma_lambda.", positive=True, only_with=_AGNOSTIC)
    window: int = setting(
        1, "r, rounds whose counts scale lambda.", at_least=1, only_with=_AGNOSTIC
    )
    initial_domain_weights: Optional[tuple[float, ...]] = setting(
        None, "lambda_0, comma-separated; uniform if not given.", only_with=_AGNOSTIC
    )
    initial_domain_counts: Optional[tuple[float, ...]] = setting(
        None,
        "N_0, comma-separated; if not given, the counts that a round is expected to have, from the "
        "totals over all training clients.",
        only_with=_AGNOSTIC,
    )
    freeze_absent_domains: bool = setting(
        False,
        "Keep lambda of a domain without examples in a round; otherwise its loss counts as 0.",
        only_with=_AGNOSTIC,
    )
    target_domain: Optional[str] = setting(
        None, "Name of the only domain that is trained on.", only_with=_TARGET_ONLY
    )
    secure_max_examples: int = setting(
        1000, "Bound of a client's examples.", at_least=1, only_with=_SECURE
    )
    secure_max_loss: float = setting(
        20.0, "Bound of an example's loss.", positive=True, only_with=_SECURE
    )
    secure_max_delta: float = setting(
        1.0, "Bound of a coordinate of a client's model delta.", positive=True, only_with=_SECURE
    )
    secure_max_beta: Optional[float] = setting(
        None,
        "Bound of a client's weight; if not given, 10 for agnostic_fed_avg and "
        "--secure_max_examples for fed_avg.",
        positive=True,
        only_with=_SECURE,
    )
    secure_bits: int = setting(
        32, "Bits of one quantised value.", at_least=2, below=41, only_with=_SECURE
    )
    evaluate_every: int = setting(10, "Rounds between evaluations on the test clients.", at_least=1)
    evaluation_clients: Optional[int] = setting(
        None,
        "How many test clients evaluations between rounds use, the same in all of them; all if not "
        "given. The one after the last round uses all.",
        at_least=1,
    )
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", at_least=1)
    keep_checkpoints: int = setting(2, "How many of the newest checkpoints stay.", at_least=1)

    def __post_init__(self) -> None:
        """Raises a `UserError` that names the flag if a value is out of range."""
        settings.check_values(self)

    def algorithm_params(
        self,
        domain_names: tuple[str, ...],
        expected_domain_counts: tuple[float, ...],
    ) -> AlgorithmParams:
        """Returns the parameters of the algorithm.

        Args:
            domain_names: Names of the p domains.
            expected_domain_counts: N_0 where no flag gives it.

        Raises:
            UserError: If the algorithm needs a `target_domain`, and it is not one of
                `domain_names`.
        """
        target = None
        if self.algorithm in _TARGET_ONLY[1]:
            if self.target_domain is None:
                raise UserError(
                    f"--target_domain: expected one of {', '.join(domain_names)} with "
                    f"--algorithm={self.algorithm}, found none"
                )
            index_of = {name: i for i, name in enumerate(domain_names)}
            target = Registry("domain in --target_domain", index_of)[self.target_domain]
        return AlgorithmParams(
            local_training=LocalTrainingParams(
                learning_rate=self.client_learning_rate,
                epochs=self.client_epochs,
                batch_size=self.batch_size,
                normalizer=self.batch_normalizer,
                shuffle=self.shuffle,
            ),
            server_optimizer=self._server_optimizer(),
            domain_weights=DomainWeightsParams(
                update=self.domain_weight_update,
                learning_rate=self.domain_learning_rate,
                window_size=self.window,
                initial_weights=self.initial_domain_weights,
                initial_counts=(
                    expected_domain_counts
                    if self.initial_domain_counts is None
                    else self.initial_domain_counts
                ),
                freeze_absent=self.freeze_absent_domains,
            ),
            target_domain=target,
            seed=self.seed,
        )

    def build_aggregation(self) -> Aggregation:
        """Returns the aggregation with its bounds."""
        bounds = SecureBounds(
            max_examples=self.secure_max_examples,
            max_loss=self.secure_max_loss,
            max_delta=self.secure_max_delta,
            max_beta=self.secure_max_beta,
            bits=self.secure_bits,
        )
        return AGGREGATIONS[self.aggregation](bounds)

    def _server_optimizer(self) -> tff.learning.optimizers.Optimizer:
        build = SERVER_OPTIMIZERS[self.server_optimizer]
        return build(self.server_learning_rate, self.server_momentum, self.server_epsilon)


def check_effective(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Refuses settings that were given but have no effect on the run.

    Args:
        config: The whole configuration.
        given: The fields that the user gave.

    Raises:
        UserError: Naming the first such flag and what it needs.
    """
    settings.check_effective(dataclasses.fields(RunConfig), dataclasses.asdict(config), given)


def check_effective_somewhere(configs: Sequence[RunConfig], given: Mapping[str, Any]) -> None:
    """Refuses settings that were given but have no effect on any of several runs.

    Args:
        configs: The configuration of each run.
        given: The fields that the user gave, for all of them.

    Raises:
        UserError: Naming the first such flag and what it needs in the first run.
    """
    for name, value in given.items():
        errors = []
        for config in configs:
            try:
                check_effective(config, {name: value})
            except UserError as e:
                errors.append(e)
        if len(errors) == len(configs):
            raise errors[0]


def config_names() -> tuple[str, ...]:
    """Returns the names of all fields of `RunConfig`."""
    return tuple(field.name for field in dataclasses.fields(RunConfig))
