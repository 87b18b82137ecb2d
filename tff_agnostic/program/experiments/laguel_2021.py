"""Delta-FL on digits by writer, as in section V of Laguel et al. 2021.

Half of the writers are training clients, the other half test clients.

The paper's data, EMNIST-62 of 1730 writers, is replaced by the digits of MNIST's training writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.program.experiments.experiment import (
    OVER_CLIENTS,
    Experiment,
    PaperTable,
    arm,
)
from tff_agnostic.program.studies.comparison import OVERALL
from tff_agnostic.program.studies.methods import Arm
from tff_agnostic.tasks.emnist import CENSUS, HIGH_SCHOOL

_TENTH = f"p10{OVER_CLIENTS}"


def _printed(mean: str, p90: str) -> dict[str, str]:
    """Returns accuracies in percent, from the mean error and the 90th percentile of errors."""

    def accuracy(error: str) -> str:
        value, spread = error.split()
        return f"{100 - float(value):.2f} {spread}"

    return {OVERALL: accuracy(mean), _TENTH: accuracy(p90)}


def _arm(label: str, algorithm: str, **settings: Any) -> Arm:
    # All methods have FedAvg's learning rate, as in the paper.
    shared: Mapping[str, Any] = {
        "rounds": 200,
        "clients_per_round": 50,
        "client_batch_size": 20,
        "client_normalizer": "batch",
        "client_learning_rate": 0.1,
        "server_optimizer": "sgd",
        "server_learning_rate": 1.0,
    }
    return arm(label, algorithm, **shared, **settings)


def _delta_fl(theta: float, **settings: Any) -> Arm:
    how = f", {settings['threshold']}" if "threshold" in settings else ""
    label = f"Delta-FL, theta = {theta:g}{how}"
    return _arm(label, "delta_fl", theta=(theta,), **settings)


DELTA_FL = Experiment(
    title="Delta-FL: digits by writer",
    task="emnist",
    task_options={"num_classes": 10, "network": "linear", "train_share": 0.5},
    arms={
        "fed_avg": _arm("FedAvg", "fed_avg"),
        "fed_avg_sub": _arm("FedAvg-Sub", "fed_avg_sub", cohort_share=0.5),
        "fed_prox": _arm("FedProx", "fed_prox", mu=0.01),
        "q_ffl": _arm("q-FFL", "q_ffl", q=0.01),
        "stand_in": _arm("q-FFL, q = 10 (the paper's AFL)", "q_ffl", q=10.0),
        "stochastic_afl": arm(
            "Stochastic-AFL of writer groups",
            "stochastic_afl",
            rounds=200,
            clients_per_round=50,
            server_optimizer="sgd",
            server_learning_rate=1.0,
            lambda_learning_rate=0.1,
        ),
        "agnostic_fed_avg": _arm(
            "AgnosticFedAvg of writer groups",
            "agnostic_fed_avg",
            lambda_learning_rate=0.1,
            lambda_absent="zero",
        ),
        "theta_08": _delta_fl(0.8),
        "theta_05": _delta_fl(0.5),
        "theta_01": _delta_fl(0.1),
        "lagged_05": _delta_fl(0.5, threshold="lagged"),
        "tracked_05": _delta_fl(0.5, threshold="tracked"),
    },
    paper=PaperTable(
        source="Laguel et al. 2021, table I (EMNIST-62, ConvNet; 100 minus its errors)",
        cells={
            "accuracy": {
                "fed_avg": _printed("16.64 (0.50)", "28.46 (1.07)"),
                "fed_avg_sub": _printed("16.23 (0.23)", "27.57 (0.81)"),
                "fed_prox": _printed("16.02 (0.54)", "27.01 (1.86)"),
                "q_ffl": _printed("16.59 (0.30)", "28.02 (0.80)"),
                "stand_in": _printed("33.01 (0.37)", "45.08 (1.00)"),
                "theta_08": _printed("16.09 (0.40)", "26.23 (1.15)"),
                "theta_05": _printed("15.49 (0.30)", "23.69 (0.94)"),
                "theta_01": _printed("16.37 (1.03)", "25.46 (2.77)"),
            }
        },
    ),
    measures=("accuracy",),
    columns=(
        OVERALL,
        HIGH_SCHOOL,
        CENSUS,
        f"mean{OVER_CLIENTS}",
        _TENTH,
        f"superquantile{OVER_CLIENTS}",
    ),
    curve="accuracy",
    harder_domain=HIGH_SCHOOL,
    trials=10,
    raw_data=ImportOptions(
        format="npz",
        client_column="writer",
        domain_column="hsf",
        domain_names=(f"4:{HIGH_SCHOOL}", f"0:{CENSUS}"),
    ),
)
