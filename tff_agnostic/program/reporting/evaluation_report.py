"""Turns the sums of a federated evaluation into numbers for people and files."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.computations.evaluation import EvaluationOutput
from tff_agnostic.files import finite_or_none
from tff_agnostic.lambda_sets import LambdaSet, Simplex
from tff_agnostic.models.functional import Model
from tff_agnostic.models.measures import Measure, measures_of
from tff_agnostic.program.reporting.client_values import ClientValues, client_values
from tff_agnostic.program.reporting.intervals import LEVEL
from tff_agnostic.program.reporting.measured import (
    DEFAULT_PERCENTILES,
    PERCENTILES,
    SUPERQUANTILE_SHARE,
    Measured,
    measured,
)
from tff_agnostic.tasks.task import TEST_SPLIT


@dataclasses.dataclass(frozen=True)
class SetReport:
    """A domain's examples, or all examples.

    Attributes:
        num_examples: How many there are.
        measures: "loss" and the metrics, by name.
    """

    num_examples: int
    measures: Mapping[str, Measured]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value; what is undefined is null."""
        values = {name: finite_or_none(m.value) for name, m in self.measures.items()}
        over_clients = {
            name: {
                "num_clients": m.num_clients,
                **{k: finite_or_none(v) for k, v in m.over_clients().items()},
            }
            for name, m in self.measures.items()
        }
        return {
            "num_examples": self.num_examples,
            **values,
            "over_clients": over_clients,
            "intervals": {name: m.intervals() for name, m in self.measures.items()},
        }


@dataclasses.dataclass(frozen=True)
class WorstMixture:
    """The worst of a set of mixtures of domains.

    Attributes:
        loss: sum_i lambda_i L_i.
        lambda_: The weight of each domain, by name.
    """

    loss: float
    lambda_: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """A federated evaluation.

    Attributes:
        domains: Report of each domain, by name.
        overall: Report of all examples together.
        measures: What was measured, by name.
        clients: Clients evaluated, without examples, and with values that are not finite.
        clipped: Of secure sums, how many values of each field of the clients' answers exceeded
            their bounds; empty for plain sums.
        split: Whose clients were evaluated: "test", or "heldout".
        worst_min_examples: How many examples a domain needs to be counted in what is said of the
            worst domain, and of its difference from the best.
        lambda_set: The mixtures of domains that the algorithm has in view; None if it has none, or
            if they are all mixtures, of which the worst is the worst domain.
        client_values: The clients' values of each measure, to be drawn.
    """

    domains: Mapping[str, SetReport]
    overall: SetReport
    measures: Mapping[str, Measure]
    clients: Mapping[str, int]
    clipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    split: str = TEST_SPLIT
    worst_min_examples: int = 1
    lambda_set: Optional[LambdaSet] = None
    client_values: Mapping[str, ClientValues] = dataclasses.field(default_factory=dict)

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The names of the domains that have too few examples to be the worst or the best."""
        return domains_below(
            {name: report.num_examples for name, report in self.domains.items()},
            self.worst_min_examples,
        )

    def worst_domain(self, measure: str = "loss") -> Optional[str]:
        """Returns the name of the counted domain that is worst in `measure`; None if none is."""
        values = self._counted_values(measure)
        pick = min if self.measures[measure].higher_is_better else max
        return pick(values, key=lambda name: values[name]) if values else None

    def worst(self, measure: str) -> float:
        """Returns the value of the worst domain; NaN if no domain is counted."""
        name = self.worst_domain(measure)
        return math.nan if name is None else self.domains[name].measures[measure].value

    def worst_mixture(self) -> Optional["WorstMixture"]:
        """Returns the mixture of `lambda_set` with the largest loss.

        None without such a set, or if a domain has no examples or no finite loss.
        """
        losses = np.array([domain.measures["loss"].value for domain in self.domains.values()])
        if self.lambda_set is None or not np.all(np.isfinite(losses)):
            return None
        lambda_ = self.lambda_set.worst(losses)
        return WorstMixture(
            float(lambda_ @ losses), dict(zip(self.domains, map(float, lambda_.tolist())))
        )

    def difference(self, measure: str) -> float:
        """Returns by how much the values of the best and the worst domain differ; at least 0.

        Only domains that are counted have a part in it; NaN if none is.
        """
        values = self._counted_values(measure).values()
        return max(values) - min(values) if values else math.nan

    def _worst_mixture_json(self) -> dict[str, Any]:
        if self.lambda_set is None:
            return {}
        worst = self.worst_mixture()
        of_set = self.lambda_set.to_json(tuple(self.domains))
        return {
            "worst_mixture": {
                **of_set,
                "loss": None if worst is None else worst.loss,
                "lambda": None if worst is None else dict(worst.lambda_),
            }
        }

    def _counted_values(self, measure: str) -> dict[str, float]:
        values = {name: report.measures[measure].value for name, report in self.domains.items()}
        left_out = self.not_counted
        return {n: v for n, v in values.items() if n not in left_out and not math.isnan(v)}

    def to_json(self) -> dict[str, Any]:
        """Returns the parts of result.json that an evaluation gives."""
        return {
            "split": self.split,
            "percentiles": PERCENTILES,
            "superquantile_share": SUPERQUANTILE_SHARE,
            "interval_level": LEVEL,
            "domains": {name: report.to_json() for name, report in self.domains.items()},
            "overall": self.overall.to_json(),
            "worst_domain": self.worst_domain(),
            "worst": {
                name: {
                    "domain": self.worst_domain(name),
                    "value": finite_or_none(self.worst(name)),
                }
                for name in self.measures
            },
            "difference": {name: finite_or_none(self.difference(name)) for name in self.measures},
            **self._worst_mixture_json(),
            "worst_min_examples": self.worst_min_examples,
            "not_counted": list(self.not_counted),
            "clients": dict(self.clients),
            "client_values": {name: of.to_json() for name, of in self.client_values.items()},
            **({"clipped": dict(self.clipped)} if self.clipped else {}),
        }


def domains_below(num_examples: Mapping[str, int], least: int) -> tuple[str, ...]:
    """Returns the domains with fewer examples than `least`, or with none."""
    return tuple(name for name, count in num_examples.items() if count < max(1, least))


def evaluation_report(
    model: Model,
    domain_names: tuple[str, ...],
    summed: EvaluationOutput,
    clipped: Optional[Mapping[str, int]] = None,
    split: str = TEST_SPLIT,
    worst_min_examples: int = 1,
    lambda_set: Optional[LambdaSet] = None,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> EvaluationReport:
    """Returns the report of an evaluation.

    Args:
        model: What was evaluated.
        domain_names: Names of the domains.
        summed: The sum of the clients' answers.
        clipped: Of secure sums, how many values of each field exceeded their bounds.
        split: Whose clients were evaluated.
        worst_min_examples: See `EvaluationReport`.
        lambda_set: The mixtures of domains that the algorithm has in view, if it has any.
        percentiles: Which percentiles over clients are reported, each in (0, 100).
    """
    sums = summed.sums
    ratios = {"loss": (sums.losses, sums.counts)}
    ratios.update((name, (m.numerator, m.denominator)) for name, m in sums.metric_sums.items())
    measures = measures_of(model)

    def set_report(row: int) -> SetReport:
        # Row p stands for all domains together.
        rows = slice(row, row + 1) if row < len(domain_names) else slice(None)
        return SetReport(
            num_examples=int(np.sum(sums.counts[rows])),
            measures={
                name: measured(
                    np.sum(numerator[rows], dtype=np.float64),
                    np.sum(denominator[rows], dtype=np.float64),
                    summed.over_clients[name],
                    row,
                    measures[name],
                    percentiles,
                )
                for name, (numerator, denominator) in ratios.items()
            },
        )

    return EvaluationReport(
        domains={name: set_report(i) for i, name in enumerate(domain_names)},
        overall=set_report(len(domain_names)),
        measures=measures,
        clients={name: int(count) for name, count in summed.clients.items()},
        clipped={field: int(count) for field, count in (clipped or {}).items()},
        split=split,
        worst_min_examples=worst_min_examples,
        lambda_set=None if isinstance(lambda_set, Simplex) else lambda_set,
        client_values={
            name: client_values(measure, summed.over_clients[name], summed.by_size[name])
            for name, measure in measures.items()
        },
    )
