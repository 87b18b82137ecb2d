"""Experiments with small models, for the tests of the documentation."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_agnostic.base.registry import Registry
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import Experiment

_SMALL: Mapping[str, Mapping[str, Any]] = {
    "stackoverflow": {"network": "lstm:embedding=4,units=4", "sequence_length": 5},
    "spanish_keyboard": {"network": "cifg:embedding=4,units=4", "sequence_length": 5},
}


def small_experiments() -> Registry[Experiment]:
    """Returns all experiments, those of `_SMALL` with small models."""
    return Registry(
        "experiment",
        {
            name: dataclasses.replace(
                experiment, task_options={**experiment.task_options, **_SMALL.get(name, {})}
            )
            for name, experiment in EXPERIMENTS.items()
        },
    )
