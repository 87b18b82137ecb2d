"""Small reports and tasks, for tests of outputs."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.metrics.evaluation_report import (
    DEFAULT_PERCENTILES,
    ClientValues,
    EvaluationReport,
    Measured,
    SetReport,
)
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import Measure
from tff_agnostic.tasks.task import Task

# Names with commas, quotes, line breaks and slashes, a name that ends like another, and names of
# our own columns.
AWKWARD_NAMES = ("a/b", "b", 'c, "d"', "e\nf", "$\\g", "_h", "loss", "all", "..", "x|y", "a_b")

QUANTITIES = OrderedDict(
    client_work=OrderedDict(
        train=OrderedDict(
            loss=ReportField(
                "before/loss",
                "loss before training",
                per_domain=True,
                needs_examples=True,
                role=Role.DOMAIN_LOSS,
                is_drawn=True,
            ),
            num_examples=ReportField(
                "before/num_examples", "examples", per_domain=True, unit=Unit.EXAMPLES
            ),
        )
    ),
    domain_weights=OrderedDict(
        weight=ReportField(
            "pull", "pull of a domain", per_domain=True, role=Role.DOMAIN_WEIGHT, is_drawn=True
        )
    ),
    finalizer=OrderedDict(update_norm=ReportField("update_norm", "norm of the update")),
)

# Measures of made-up results.
MEASURES = OrderedDict(
    loss=Measure("loss", Unit.NONE, False, None),
    accuracy=Measure("accuracy", Unit.SHARE, True, None),
    perplexity=Measure("perplexity", Unit.FACTOR, False, None),
)


def measures(*names: str) -> dict[str, Measure]:
    return {name: MEASURES[name] for name in names}


def make_report(
    losses: Sequence[float], counts: Sequence[int], weights: Sequence[float]
) -> Mapping[str, Any]:
    return OrderedDict(
        client_work=OrderedDict(
            train=OrderedDict(loss=np.array(losses, np.float32), num_examples=np.array(counts))
        ),
        domain_weights=OrderedDict(weight=np.array(weights, np.float32)),
        finalizer=OrderedDict(update_norm=np.float32(0.5)),
    )


def make_evaluation(
    losses: Mapping[str, float], clipped: Optional[Mapping[str, int]] = None, split: str = "test"
) -> EvaluationReport:
    """Returns a report whose domains have these losses, and accuracies of the same values."""

    def one(value: float) -> SetReport:
        m = Measured(value, 2, value, dict.fromkeys(DEFAULT_PERCENTILES, value), value)
        return SetReport(0 if math.isnan(value) else 4, {"loss": m, "accuracy": m})

    return EvaluationReport(
        domains={name: one(value) for name, value in losses.items()},
        overall=one(float(np.nanmean(list(losses.values())))),
        measures=measures("loss", "accuracy"),
        clients={"evaluated": 2, "empty": 0, "non_finite": 0},
        clipped=clipped or {},
        split=split,
        client_values={
            name: ClientValues([0.25, 0.5], [1, 1], [4], [2], [0.375])
            for name in ("loss", "accuracy")
        },
    )


def make_task(domain_names: Sequence[str], num_features: int = 2, clients: int = 3) -> Task:
    """Returns a logistic-regression task; each random client has examples of every domain."""
    rng = np.random.default_rng(0)
    size = 2 * len(domain_names)

    def client() -> dict[str, np.ndarray]:
        domain_id = np.arange(size, dtype=np.int32) % len(domain_names)
        y = rng.integers(3, size=size).astype(np.int32)
        x = rng.normal(size=[size, num_features]) + y[:, None]
        return {"x": x.astype(np.float32), "y": y, "domain_id": domain_id}

    dataset = InMemoryClients({f"client_{k}": client() for k in range(clients)})
    return Task(tuple(domain_names), dataset, dataset, logistic_regression(num_features, 3))
