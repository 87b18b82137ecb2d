"""FedBoost on the words of a text, figure 5 of Hamer et al. 2020, with draws of many seeds.

Example: .venv/bin/python -m benchmarks.fedboost_speakers.measure --predictors=speakers.npz

Predictors are unigram models of all speakers, as `base_predictors` writes them. All take part in
every round, so that a round's gradient is the mean over the words of the whole text; the steps are
the package's own, without its clients.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np
from tabulate import tabulate

from benchmarks.fedboost_synthetic.measure import trained
from tff_agnostic.base_predictors.files import PredictorFile, read_predictors
from tff_agnostic.boosting.alpha import BoostOptions, alpha_steps
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.errors import counted
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model

_ESTIMATORS = ("masked", "divided", "centred")
_SAMPLINGS = ("uniform", "weighted")


class Text(NamedTuple):
    """A text by its speakers.

    Attributes:
        model: The ensemble of their smoothed unigram models, with the log loss.
        words: Share of each word in the whole text, float64 [outcomes].
        shares: m_k / m, of each speaker, float64 [q].
    """

    model: EnsembleModel
    words: np.ndarray
    shares: np.ndarray


def text_of(file: PredictorFile) -> Text:
    """Returns the text whose speakers' models a file has, smoothing taken away again."""
    (scores,) = file.arrays
    s, examples = file.about["smoothing_share"], np.asarray(file.about["examples"], np.float64)
    own = (np.exp(scores.astype(np.float64)) - s / scores.shape[1]) / (1 - s)
    shares = examples / examples.sum()
    model = ensemble(unigram_model(scores.shape[1]), [ModelWeights([row], []) for row in scores])
    return Text(model, shares @ np.maximum(own, 0.0), shares)


def loss(text: Text, alpha: np.ndarray) -> float:
    """Returns the cross-entropy of the whole text under a mixture, in nats."""
    (table,) = text.model.initial_weights.non_trainable
    return float(-text.words @ np.log(table.astype(np.float64) @ alpha))


def final_loss(text: Text, options: BoostOptions, seed: int, rounds: int) -> float:
    """Returns the loss of the last alpha after so many rounds."""
    return loss(text, trained(alpha_steps(text.model, options, seed), text.words, rounds))


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints a row per estimator, a column per way to sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictors", type=Path, required=True)
    parser.add_argument("--estimators", nargs="+", choices=_ESTIMATORS, default=_ESTIMATORS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--eta", type=float, default=0.01)
    parser.add_argument("--draw", default="independent")
    chosen = parser.parse_args(argv)
    text = text_of(read_predictors(chosen.predictors))
    q = text.model.num_predictors

    def cell(estimator: str, sampling: str) -> str:
        options = BoostOptions(
            predictor_sampling=sampling,
            budget=q // 2,
            predictor_draw=chosen.draw,
            gradient_estimator=estimator,
            uniform_share=0.0,
            alpha_learning_rate=chosen.eta,
        )
        found = [final_loss(text, options, seed, chosen.rounds) for seed in range(chosen.seeds)]
        return f"{np.mean(found):.4f} ({np.std(found, ddof=min(1, len(found) - 1)):.4f})"

    whole = BoostOptions(predictor_sampling="none", alpha_learning_rate=chosen.eta)
    print(f"m_k / m {loss(text, text.shares):.5f}, uniform {loss(text, np.full(q, 1 / q)):.5f}")
    of_all = final_loss(text, whole, 0, chosen.rounds)
    print(f"all predictors after {counted(chosen.rounds, 'round')} {of_all:.4f}")
    rows = [[e, *(cell(e, sampling) for sampling in _SAMPLINGS)] for e in chosen.estimators]
    print(tabulate(rows, headers=["estimator", *_SAMPLINGS]))


if __name__ == "__main__":
    main()
