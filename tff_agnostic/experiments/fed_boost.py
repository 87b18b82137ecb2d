"""FedBoost on the speakers of Shakespeare, section 5.2 of Hamer et al. 2020: figure 5.

The paper's data, TFF's Shakespeare of 715 characters, is replaced by the 299 speakers with words of
the 40,000 lines that are known as tiny Shakespeare. What is estimated is the distribution of the
words of the whole text: training and evaluation are on the same clients.
"""

from typing import Any

from tff_agnostic.experiments.experiment import Experiment, PaperTable, UnigramPredictors
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.program.arms import Arm
from tff_agnostic.program.trial_results import OVERALL

_SPEAKERS = 299
# C = q / 2
_BUDGET = _SPEAKERS // 2


def _arm(label: str, sampling: str) -> Arm:
    sampled: dict[str, Any] = (
        {} if sampling == "none" else {"budget": _BUDGET, "predictor_draw": "independent"}
    )
    return Arm(
        label,
        {
            "algorithm": "fed_boost",
            "rounds": 300,
            # All of them, in every round.
            "clients_per_round": _SPEAKERS,
            "alpha_learning_rate": 0.01,
            "predictor_sampling": sampling,
            "gradient_estimator": "masked",
            **sampled,
        },
    )


SHAKESPEARE = Experiment(
    title="FedBoost: words of Shakespeare's speakers",
    summary="unigram models of the speakers of tiny Shakespeare, mixed; figure 5 of Hamer et al. "
    "2020, which has curves and no numbers",
    task="unigram",
    task_options={"vocabulary_size": 20_000, "test_split": "train"},
    arms={
        "full": _arm("all predictors", "none"),
        "uniform": _arm("uniform, masked", "uniform"),
        "weighted": _arm("weighted, masked", "weighted"),
    },
    paper=PaperTable(source="Hamer et al. 2020, figure 5 (no numbers)", cells={}),
    measures=("loss", "perplexity"),
    columns=(OVERALL,),
    curve="loss",
    trials=1,
    raw_data=ImportOptions(
        format="plays",
        tokenizer="letters",
        case="lower",
        domain_name="shakespeare",
        vocabulary_size=20_000,
        split=("train:1",),
    ),
    base_predictors=UnigramPredictors("client", smoothing=0.01),
)
