"""FedBoost on the speakers of Shakespeare, and on next-word models of Stack Exchange sites.

The first experiment is in section 5.2 of Hamer et al. 2020, figure 5. The paper's data, TFF's
Shakespeare with 715 characters, are replaced by the 299 speakers in the 40,000 lines known as tiny
Shakespeare. The experiment estimates the word distribution of the complete text, so training and
evaluation use the same clients. The second experiment is not in the paper.
"""

from __future__ import annotations

from typing import Any

from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.program.experiments.experiment import (
    ArmsAsPredictors,
    Experiment,
    PaperTable,
    UnigramPredictors,
    arm,
)
from tff_agnostic.program.studies.comparison import OVERALL, WORST
from tff_agnostic.program.studies.methods import Arm

_SPEAKERS = 299
# The paper's C is q / 2.
_BUDGET = _SPEAKERS // 2


def _arm(label: str, sampling: str) -> Arm:
    sampled: dict[str, Any] = (
        {} if sampling == "none" else {"budget": _BUDGET, "predictor_draw": "independent"}
    )
    if sampling == "weighted":
        sampled["uniform_share"] = 0.0
    return arm(
        label,
        "fed_boost",
        rounds=300,
        # Each client has one predictor, so a round of all clients has all predictors.
        clients_per_round=_SPEAKERS,
        alpha_learning_rate=0.01,
        predictor_sampling=sampling,
        gradient_estimator="masked",
        **sampled,
    )


SHAKESPEARE = Experiment(
    title="FedBoost: words of Shakespeare's speakers",
    task="unigram",
    task_options={"vocabulary": 20_000, "test_split": "train"},
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

_SITES = ("ai", "beer", "matheducators")
_SHARED: dict[str, Any] = {"clients_per_round": 10, "max_examples": 200, "evaluation_clients": 60}
# Settings of the models that FedBoost and AFLBoost mix.
_TRAINED: dict[str, Any] = {
    **_SHARED,
    "rounds": 400,
    "client_learning_rate": 1.0,
    "server_learning_rate": 0.02,
}


def _mixture(label: str, algorithm: str, sampling: str) -> Arm:
    sampled: dict[str, Any] = {} if sampling == "none" else {"budget": 2, "uniform_share": 0.0}
    if algorithm == "afl_boost":
        sampled["lambda_absent"] = "zero"
    return arm(
        label,
        algorithm,
        rounds=40,
        alpha_learning_rate=0.3,
        predictor_sampling=sampling,
        gradient_estimator="centred",
        **_SHARED,
        **sampled,
    )


STACKEXCHANGE = Experiment(
    title="FedBoost: next words of Stack Exchange sites",
    task="next_word",
    task_options={
        "vocabulary": 1000,
        "sequence_length": 12,
        "network": "lstm:embedding=24,units=48",
    },
    arms={
        **{
            site: arm(f"model of {site}", "fed_avg_target_only", target_domain=site, **_TRAINED)
            for site in _SITES
        },
        "agnostic_fed_avg": arm(
            "AgnosticFedAvg",
            "agnostic_fed_avg",
            lambda_absent="zero",
            lambda_learning_rate=0.1,
            window=10,
            **_TRAINED,
        ),
        "fed_boost": _mixture("FedBoost, 2 of 3", "fed_boost", "weighted"),
        "afl_boost": _mixture("AFLBoost, 2 of 3", "afl_boost", "weighted"),
        "afl_boost_all": _mixture("AFLBoost, all 3", "afl_boost", "none"),
    },
    paper=PaperTable(source="no paper", cells={}),
    measures=("perplexity", "loss"),
    columns=(OVERALL, *_SITES, WORST),
    curve="perplexity",
    trials=2,
    raw_data=ImportOptions(
        format="stackexchange", domain="site", split=("train:0.7", "heldout:0.15", "test:0.15")
    ),
    base_predictors=ArmsAsPredictors(_SITES),
)
