"""Tasks of the command line: the library's tasks with defaults for their runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_agnostic.base.registry import Registry
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import TaskSpec
from tff_agnostic.tasks.text_tasks import CifgNetwork, LstmNetwork


@dataclasses.dataclass(frozen=True)
class TaskDefaults:
    """A task of the command line.

    Attributes:
        task: Name of the library's task.
        summary: One-line description, for help texts.
        settings: Settings of runs, by flag, that differ from the defaults of their classes.
        settings_by_algorithm: Further settings of runs, by algorithm and flag.
        options: Options of the task that differ from the defaults of their class.
        heldout: Options that evaluate the task on held-out examples instead of the test examples;
            empty for tasks on stores, which all have the option test_split.
    """

    task: str
    summary: str
    settings: Mapping[str, Any]
    settings_by_algorithm: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    heldout: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def spec(self) -> TaskSpec:
        """The library's specification of the task."""
        return TASKS[self.task]


# Settings of the Stack Overflow LSTM in Reddi et al. 2021; lambda's learning rate is from Ro et al.
_REDDI_ET_AL: Mapping[str, Any] = {
    "client_batch_size": 16,
    "client_learning_rate": 10**-0.5,
    "server_optimizer": "adam:epsilon=1e-5",
    "server_learning_rate": 10**-2,
    "lambda_learning_rate": 0.005,
    "client_normalizer": "batch",
}

DEFAULTS: Registry[TaskDefaults] = Registry(
    "task",
    {
        # Tuned for each algorithm by the worst class's accuracy on seeds that no reported table
        # uses; docs/results/digits.md has the grid.
        "digits": TaskDefaults(
            "digits",
            "scikit-learn's handwritten digits; every class a domain, two of them rare",
            {
                "rounds": 200,
                "clients_per_round": 10,
                "client_batch_size": 10,
                "client_learning_rate": 1.0,
                "lambda_learning_rate": 0.03,
                "window": 10,
                "evaluate_every": 10,
            },
            settings_by_algorithm={
                "fed_avg": {"client_learning_rate": 8.0},
                "fed_avg_target_only": {"client_learning_rate": 8.0},
            },
            heldout={"heldout_share": 0.25},
        ),
        "toy_regression": TaskDefaults(
            "toy_regression",
            "the point nearest to the farthest of 5 domains; true answer 0",
            {
                "rounds": 1000,
                # Large cohorts, of 40 of the 50 clients, and small steps keep the sampling noise
                # far below the differences between methods.
                "clients_per_round": 40,
                "client_batch_size": 20,
                "client_learning_rate": 0.02,
                "lambda_learning_rate": 0.05,
                "window": 50,
                "evaluate_every": 50,
                "checkpoint_every": 50,
            },
        ),
        # docs/results/adult_early_stopping.md explains these settings and their effect.
        "adult": TaskDefaults(
            "adult",
            "UCI Adult census income; domains doctorate or not (files in --data_dir)",
            {
                "rounds": 200,
                "clients_per_round": 10,
                "client_batch_size": 50,
                "client_learning_rate": 1.0,
                "lambda_learning_rate": 0.1,
                # Each domain's fraction of the training rows.
                "lambda_initial": (0.0127, 0.9873),
                "window": 5,
                "evaluate_every": 20,
            },
            heldout={"heldout_share": 0.2},
        ),
        "custom": TaskDefaults(
            "custom",
            "your Keras model (--model, a Python file) on your client store (--data)",
            {"client_normalizer": "batch"},
        ),
        "next_word": TaskDefaults(
            "next_word",
            "next word of any texts, LSTM or CIFG by flags; domains the store's (--data)",
            {
                **_REDDI_ET_AL,
                "rounds": 500,
                "clients_per_round": 10,
                "evaluate_every": 25,
            },
        ),
        "text_classifier": TaskDefaults(
            "text_classifier",
            "class of a text, mean of word vectors or LSTM; domains the store's (--data)",
            {
                "rounds": 300,
                "clients_per_round": 20,
                "client_batch_size": 10,
                "client_learning_rate": 0.3,
                "server_optimizer": "adam:epsilon=1e-5",
                "server_learning_rate": 0.01,
                "lambda_learning_rate": 0.01,
                "client_normalizer": "batch",
                "evaluate_every": 20,
            },
            options={"sequence_length": 50},
        ),
        # Appendix C of Ro et al. 2021, with the hyperparameters of Reddi et al. 2021.
        "emnist": TaskDefaults(
            "emnist",
            "EMNIST characters, CNN; domains high-school or census writers (--data, or TFF's own)",
            {
                "rounds": 1500,
                "clients_per_round": 10,
                "client_batch_size": 20,
                "client_learning_rate": 10**-1.5,
                "server_optimizer": "adam:epsilon=1e-4",
                "server_learning_rate": 10**-2.5,
                "lambda_learning_rate": 0.01,
                "client_normalizer": "batch",
                "evaluate_every": 50,
            },
        ),
        # Section 5.1 of Ro et al. 2021.
        "stackoverflow": TaskDefaults(
            "stackoverflow",
            "next word in Stack Overflow or any Stack Exchange site, LSTM; domains question and "
            "answer (--data, or TFF's own)",
            {
                **_REDDI_ET_AL,
                "rounds": 1500,
                "clients_per_round": 50,
                "max_examples": 1000,
                "evaluate_every": 50,
            },
            options={"network": LstmNetwork(units=670)},
        ),
        # Section 5.2 of Ro et al. 2021 with the model of Hard et al. 2018, a CIFG with tied
        # embeddings. The domains are countries, and each client belongs to one of them. The paper's
        # data are private: any store of texts by country can replace them.
        "spanish_keyboard": TaskDefaults(
            "next_word",
            "next word in Spanish, CIFG with tied embeddings; domains the store's locales (--data)",
            {
                "rounds": 3000,
                "clients_per_round": 500,
                "client_batch_size": 50,
                "client_learning_rate": 0.5,
                "server_optimizer": "nesterov:momentum=0.9",
                "server_learning_rate": 1.0,
                "lambda_learning_rate": 0.005,
                "client_normalizer": "batch",
                "evaluate_every": 100,
            },
            options={"network": CifgNetwork()},
        ),
        # Section 5.2 of Mohri et al. 2019.
        "fashion_mnist": TaskDefaults(
            "fashion_mnist",
            "three garments of Fashion-MNIST, logistic regression; every class a domain (--data)",
            {
                "rounds": 300,
                "clients_per_round": 10,
                "client_batch_size": 50,
                "client_learning_rate": 0.1,
                "server_optimizer": "adam:epsilon=1e-7",
                "server_learning_rate": 0.01,
                "lambda_learning_rate": 0.01,
                "client_normalizer": "batch",
                "evaluate_every": 20,
            },
        ),
        # Section 5.3 of Mohri et al. 2019: documents and conversations in capitals without
        # punctuation, 10,000 words. The paper uses the Penn Treebank and the Cornell movie
        # dialogues; `import_data --format=text_folders --case=upper --punctuation=drop` turns such
        # texts into a store.
        "two_domain_lm": TaskDefaults(
            "next_word",
            "next word in two kinds of text, two-layer LSTM; domains the store's (--data)",
            {
                "rounds": 500,
                "clients_per_round": 10,
                "client_batch_size": 20,
                "client_learning_rate": 1.0,
                "server_optimizer": "momentum:momentum=0.9",
                "server_learning_rate": 0.3,
                "lambda_learning_rate": 0.01,
                "client_normalizer": "batch",
                "evaluate_every": 25,
            },
            options={"network": LstmNetwork(layers=2)},
        ),
        "unigram": TaskDefaults(
            "unigram",
            "words of any texts, each by itself: a distribution; domains the store's (--data)",
            {
                "rounds": 300,
                "clients_per_round": 50,
                "client_batch_size": 100,
                "client_learning_rate": 1.0,
                "lambda_learning_rate": 0.01,
                "client_normalizer": "batch",
                "evaluate_every": 20,
                "alpha_learning_rate": 0.05,
            },
        ),
    },
)
