"""What determines a run beside its task, its algorithm and its aggregation."""

import dataclasses
from typing import Optional

from tff_agnostic.aggregations.private.registry import PRIVACIES
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.errors import UserError
from tff_agnostic.models.precision import PRECISIONS
from tff_agnostic.program.reporting.measured import DEFAULT_PERCENTILES, percentile_name
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import Settings, setting


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of every run, whatever it trains.

    Every field is a flag of the same name; its help text is in the field's metadata. Tasks replace
    the defaults given here, and those of algorithms, with their own (`TaskSpec.defaults`).
    """

    algorithm: str = setting(
        "agnostic_fed_avg", "What to train with: an algorithm's name, or a Python file of yours."
    )
    runtime: str = setting(
        "cohort",
        "Where rounds are executed: in this process, in Ray's workers, or in TFF's runtime, the "
        "reference.",
        choices=RUNTIMES,
        may_change="numbers may differ in their last bits from those of an uninterrupted run",
    )
    aggregation: str = setting("plain", "How clients are summed.", choices=AGGREGATIONS)
    privacy: str = setting(
        "none",
        "Differential privacy of clients towards whoever sees what training releases: the server "
        "adds noise to every sum (central), or to all prefixes of their course (tree), or clients "
        "add it before a secure sum (distributed).",
        choices=PRIVACIES,
    )
    initial_model: Optional[str] = setting(
        None,
        "What training starts from instead of fresh weights: a Keras model (.keras or .h5), the "
        "folder of a run (the main model of its newest checkpoint), or one checkpoint file.",
        is_path=True,
    )
    trust: bool = setting(
        False,
        "Load Keras files of --initial_model and --base_predictors that hold code, such as Lambda "
        "layers, and let it run. A run does not keep this: give it again with --resume, and to "
        "what evaluates, saves or exports the run.",
        is_stored=False,
    )
    frozen_layers: tuple[str, ...] = setting(
        (),
        "Layers that are not trained, comma-separated: their names, or patterns such as block_*. "
        "Their weights stay those of --initial_model, or fresh ones, and no update of them is sent "
        "back.",
    )
    precision: str = setting(
        "float32",
        "What layers compute in. Mixed precision is for GPUs and TPUs; weights stay float32.",
        choices=PRECISIONS,
    )
    seed: int = setting(0, "Seeds data splits, cohorts, weights, shuffling.", at_least=0)
    rounds: int = setting(100, "T, communication rounds.", at_least=1, may_change="")
    clients_per_round: int = setting(10, "c, clients in a round.", at_least=1)
    cohort_sampling: str = setting(
        "uniform",
        "How a round's clients are drawn: uniformly without replacement; stratified, so that every "
        "domain has its share of them (a client's domain being that of most of its examples); "
        "poisson, each by itself, so that sizes differ; or in turns, so that a client's rounds are "
        "as far apart as can be.",
        choices=COHORT_SAMPLINGS,
    )
    max_examples: Optional[int] = setting(
        None, "How many examples of a training client are used, the first ones.", at_least=1
    )
    evaluate_every: int = setting(
        10,
        "Rounds between evaluations on the test clients.",
        at_least=1,
        may_change="evaluations of earlier rounds stay as they are",
    )
    evaluation_clients: Optional[int] = setting(
        None,
        "How many test clients evaluations between rounds use, the same in all of them; all if not "
        "given. The one after the last round uses all.",
        at_least=1,
        may_change="evaluations of earlier rounds stay as they are",
    )
    worst_min_examples: int = setting(
        10,
        "Examples that a domain of the evaluated clients needs to be counted in what is said of "
        "the worst domain, and of its difference from the best; the others are listed.",
        at_least=1,
        as_before=1,
        may_change="what was written of the worst domain after earlier rounds stays as it is",
    )
    client_percentiles: tuple[float, ...] = setting(
        DEFAULT_PERCENTILES,
        "Percentiles of the clients' values that evaluations report, comma-separated, each between "
        "0 and 100.",
        may_change="columns of earlier rounds have what was asked for then",
    )
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", at_least=1, may_change="")
    keep_checkpoints: int = setting(
        2, "How many of the newest checkpoints stay.", at_least=1, may_change=""
    )

    def __post_init__(self) -> None:
        """Checks the percentiles too; see `Settings`."""
        super().__post_init__()
        outside = [f"{p:g}" for p in self.client_percentiles if not 0 < p < 100]
        if outside or not self.client_percentiles:
            found = outside[0] if outside else "none"
            raise UserError(
                f"--client_percentiles: expected numbers between 0 and 100, found {found}"
            )
        # Columns are called so: percentiles that round to one name are one.
        names = list(map(percentile_name, self.client_percentiles))
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"--client_percentiles: expected different numbers, found {twice[1:]} twice"
            )
