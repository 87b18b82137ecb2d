"""Warnings about neglected domains, and about implausible losses.

The checks are pure functions of numbers. Each warning names the flags that help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import counted, some_of
from tff_agnostic.base.files import finite_or_none
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import Role
from tff_agnostic.data.data_warnings import ABSURD, GIVEN_UP, UNMOVED, Remark
from tff_agnostic.domain_weights.ascent import FREEZE, LAMBDA, Cvar, LambdaOptions
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models.metrics import takes_scores
from tff_agnostic.models.model import Model
from tff_agnostic.program.options.flags import NONE

# A domain with a lambda below this fraction of 1 / p has nearly no weight.
_NEAR_ZERO = 0.25
# The final lambda is the mean over the last rounds, which are this fraction of all rounds.
_LAST_ROUNDS = 0.1
# A loss is implausible above this multiple of an uninformed model's loss.
_ABSURD = 10.0
_MAX_NAMES = 5


def moves_lambda(algorithm: Any) -> bool:
    """Whether the domains' losses change lambda with these settings."""
    return isinstance(algorithm, LambdaOptions) and algorithm.lambda_.moves


def keeping_absent(algorithm: LambdaOptions) -> list[str]:
    """Returns the advice to freeze lambda of absent domains; empty if the run already does."""
    return [] if algorithm.lambda_.absent == FREEZE else ["--lambda_absent=freeze keeps it"]


def last_lambda(
    columns: Mapping[str, np.ndarray], domain_names: Sequence[str]
) -> Optional[np.ndarray]:
    """Returns the mean of lambda over the last tenth of the rounds, [p]; None without lambda."""
    courses = [columns.get(Column(LAMBDA, name).name) for name in domain_names]
    if any(values is None or not len(values) for values in courses):
        return None
    by_round = np.array(courses)
    count = max(1, round(_LAST_ROUNDS * by_round.shape[1]))
    return np.asarray(by_round[:, -count:].mean(axis=1))


def weightless_domains(
    lambda_: np.ndarray, domain_names: Sequence[str], algorithm: LambdaOptions
) -> dict[str, float]:
    """Returns the lambda of each domain whose lambda has fallen to nearly 0, by name.

    Args:
        lambda_: Final lambda, [p]; see `last_lambda`.
    """
    limit = _NEAR_ZERO / len(domain_names)
    given = algorithm.lambda_.initial or (1.0,) * len(domain_names)
    return {
        name: float(weight)
        for name, weight, start in zip(domain_names, lambda_, given)
        if weight < limit <= start
    }


def given_up(
    start: Mapping[str, float], end: Mapping[str, float], weights: Mapping[str, float], advice: str
) -> list[Remark]:
    """Returns a warning about domains with nearly no lambda and a larger loss than at the start.

    Args:
        start: Loss of each domain before the first round.
        end: Loss of each domain after the last round.
        weights: lambda of each domain whose lambda is near 0, by name.
    """
    worse = [name for name in weights if end[name] > start[name]]
    if not worse:
        return []
    listed = [
        f"{name} (loss {start[name]:.3g} before the first round, {end[name]:.3g} at the end, "
        f"lambda {weights[name]:.2g})"
        for name in worse
    ]
    return [
        Remark(
            GIVEN_UP,
            f"training neglects {some_of(listed, _MAX_NAMES)}: {advice}.",
            {
                "domains": {
                    n: {"start": start[n], "end": finite_or_none(end[n]), "lambda": weights[n]}
                    for n in worse
                }
            },
        )
    ]


def lambda_advice(algorithm: LambdaOptions) -> str:
    """Returns advice on how to keep a domain's lambda from vanishing in a run of these settings."""
    player = algorithm.lambda_
    if isinstance(player.update, Cvar):
        smaller = f"a rate of --lambda_update=cvar below {player.update.rate:g}"
    else:
        smaller = f"a --lambda_learning_rate below {player.learning_rate:g}"
    ways = [
        *keeping_absent(algorithm),
        f"{smaller} moves it less",
        "--lambda_update=fixed keeps lambda where it begins",
    ]
    return "; ".join(ways)


def absurd_losses(
    end: Mapping[str, float], limit: float, what: str, rates: Iterable[str]
) -> list[Remark]:
    """Returns a warning about losses far above an uninformed model's loss.

    Args:
        end: Loss of each domain after the last round; NaN without examples.
        limit: Loss of an uninformed model.
        what: Description of the uninformed model, for the message.
    """
    beyond = {name: loss for name, loss in end.items() if loss > _ABSURD * limit > 0}
    if not beyond:
        return []
    listed = [f"{name} {beyond[name]:,.6g}" for name in sorted(beyond, key=lambda n: -beyond[n])]
    advice = " or ".join(["scale the features", *(f"lower {rate}" for rate in rates)])
    return [
        Remark(
            ABSURD,
            f"losses that no such model should have: {some_of(listed, _MAX_NAMES)}, where {what} "
            f"has {limit:.3g}. Features of large numbers or too high a rate do that: {advice}.",
            {
                "losses": {name: finite_or_none(loss) for name, loss in beyond.items()},
                "loss_without_knowledge": limit,
            },
        )
    ]


def unknown_losses(
    end: Mapping[str, float], num_non_finite: int, rates: Iterable[str]
) -> list[Remark]:
    """Returns a warning about domains without a loss, if some clients' numbers are not finite.

    Args:
        end: Loss of each domain after the last round; NaN if it is undefined.
        num_non_finite: Number of test clients whose numbers are not finite.
    """
    lost = [name for name, loss in end.items() if not math.isfinite(loss)]
    if not (lost and num_non_finite):
        return []
    clients = counted(num_non_finite, "test client")
    return [
        Remark(
            ABSURD,
            f"no loss is known of {some_of(lost, _MAX_NAMES)}, as the numbers of {clients} are not "
            f"finite: scale the features or lower {' or '.join(rates)}.",
            {"losses": dict.fromkeys(lost), "non_finite_clients": num_non_finite},
        )
    ]


def baselines_above_losses(
    baselines: Mapping[str, float], largest: Mapping[str, float]
) -> list[Remark]:
    """Returns a warning if no loss was ever above its baseline, so that lambda did not move.

    Args:
        largest: Largest loss of each domain in any round; NaN for a domain in no round.
    """
    if any(largest[name] > b for name, b in baselines.items()):
        return []
    listed = [f"{name} {b:.4g} (largest loss {largest[name]:.4g})" for name, b in baselines.items()]
    return [
        Remark(
            UNMOVED,
            "lambda did not move, because no domain's loss was above its baseline in any round: "
            f"{some_of(listed, _MAX_NAMES)}. Lower --lambda_baselines.",
            {
                "domains": {
                    name: {"baseline": b, "largest_loss": finite_or_none(largest[name])}
                    for name, b in baselines.items()
                }
            },
        )
    ]


def chance_loss(model: Model) -> Optional[tuple[float, int]]:
    """Returns the cross-entropy of equal probabilities, and the number of classes.

    None for a model with another loss.
    """
    if takes_scores(model.loss) is None:
        return None
    example = tf.nest.map_structure(
        lambda s: tf.zeros([1, *(n or 1 for n in s.shape.as_list()[1:])], s.dtype),
        model.example_spec["x"],
    )
    # Use tensors, as Keras' recurrent layers reject arrays as weights.
    weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    scores = model.predict(weights, example, False, tf.zeros([2], tf.int32))
    # A single score belongs to the second of two classes.
    num_classes = max(2, int(scores.shape[-1]))
    return math.log(num_classes), num_classes


def first_round_loss(
    columns: Sequence[Column], values: Mapping[str, np.ndarray]
) -> Optional[float]:
    """Returns the domains' mean loss in the first round, before training.

    None if the run does not report it.
    """
    losses = [values[c.name] for c in columns if c.quantity.role is Role.DOMAIN_LOSS]
    first = np.array([values_[0] for values_ in losses if len(values_)])
    return float(np.nanmean(first)) if np.isfinite(first).any() else None


def remarks_at_end(
    model: Model,
    algorithm: Any,
    settings: Mapping[str, Any],
    columns: Sequence[Column],
    values: Mapping[str, np.ndarray],
    report: EvaluationReport,
    evaluate_start: Callable[[], Optional[EvaluationReport]],
) -> list[Remark]:
    """Returns the most serious warnings about a finished run.

    Args:
        report: Evaluation of the main model after the last round.
        evaluate_start: Called if the initial model's evaluation is needed; returns it, or None if
            the run must not evaluate the initial model.
    """
    names, end = list(report.domains), _losses(report)
    remarks = []
    if moves_lambda(algorithm):
        lambda_ = last_lambda(values, names)
        weights = {} if lambda_ is None else weightless_domains(lambda_, names, algorithm)
        start = evaluate_start() if weights else None
        if start is not None:
            remarks += given_up(_losses(start), end, weights, lambda_advice(algorithm))
        numbers = algorithm.lambda_.known_baselines(len(names))
        if numbers:
            largest = {
                str(c.domain): float(np.fmax.reduce(values[c.name]))
                for c in columns
                if c.quantity.role is Role.DOMAIN_LOSS
            }
            remarks += baselines_above_losses(dict(zip(names, numbers)), largest)
    rates = [f"--{s}" for s in settings if s in ("client_learning_rate", "server_learning_rate")]
    if settings.get("private_evaluation", NONE) == NONE:
        # Ignore noisy counts, which are hardly ever 0.
        remarks += unknown_losses(end, int(report.clients.get("non_finite", 0)), rates)
    classes, first = chance_loss(model), first_round_loss(columns, values)
    if classes is not None:
        equal, count = classes
        what = f"one that gives all {count} classes the same probability"
        remarks += absurd_losses(end, equal, what, rates)
    elif first is not None and settings["initial_model"] is None:
        # Do not check the loss of a trained initial model, which may be near 0 in the first round.
        remarks += absurd_losses(end, first, "the first round, before any training,", rates)
    return remarks


def _losses(report: EvaluationReport) -> dict[str, float]:
    return {name: domain.measures["loss"].value for name, domain in report.domains.items()}
