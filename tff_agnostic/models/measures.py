"""What is measured of a model on examples: its loss, and its metrics."""

import dataclasses
from collections import OrderedDict
from typing import Optional

from tff_agnostic.models.functional import Model
from tff_agnostic.models.metrics import Metric
from tff_agnostic.quantities import Unit


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of a model on examples: the loss, or a metric.

    Attributes:
        name: "loss", or the metric's name.
        unit: What its numbers are.
        higher_is_better: Which direction is good.
        metric: The metric; None for the loss.
    """

    name: str
    unit: Unit
    higher_is_better: bool
    metric: Optional[Metric]


def measures_of(model: Model) -> "OrderedDict[str, Measure]":
    """Returns the measures of a model by name: the loss, then its metrics."""
    measures = OrderedDict(loss=Measure("loss", Unit.NONE, False, None))
    for metric in model.metrics:
        unit = Unit[metric.shown_as.upper()]
        measures[metric.name] = Measure(metric.name, unit, metric.higher_is_better, metric)
    return measures
