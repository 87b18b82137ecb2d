"""Registry of the papers' experiments, with the results that the papers print."""

from __future__ import annotations

from tff_agnostic.base.registry import Registry
from tff_agnostic.program.experiments.experiment import Experiment
from tff_agnostic.program.experiments.hamer_2020 import SHAKESPEARE, STACKEXCHANGE
from tff_agnostic.program.experiments.laguel_2021 import DELTA_FL
from tff_agnostic.program.experiments.mohri_2019 import ADULT, FASHION_MNIST, TWO_DOMAIN_LM
from tff_agnostic.program.experiments.ro_2021 import (
    EMNIST,
    MNIST_BY_WRITER,
    SPANISH_KEYBOARD,
    STACKOVERFLOW,
)

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    {
        "emnist": EMNIST,
        "mnist_by_writer": MNIST_BY_WRITER,
        "delta_fl": DELTA_FL,
        "stackoverflow": STACKOVERFLOW,
        "spanish_keyboard": SPANISH_KEYBOARD,
        "adult": ADULT,
        "fashion_mnist": FASHION_MNIST,
        "two_domain_lm": TWO_DOMAIN_LM,
        "fedboost_shakespeare": SHAKESPEARE,
        "fedboost_stackexchange": STACKEXCHANGE,
    },
)
