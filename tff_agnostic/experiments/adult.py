"""Adult, section 5.1 of Mohri et al. 2019."""

from tff_agnostic.experiments.experiment import Experiment, PaperTable
from tff_agnostic.program.comparing.trial_results import OVERALL, WORST
from tff_agnostic.program.specs.arms import Arm

_DOCTORATE, _OTHERS = "doctorate", "non-doctorate"
_FIXED = {"algorithm": "stochastic_afl", "domain_weight_update": "fixed"}

ADULT = Experiment(
    title="Adult: doctorate or not",
    summary="UCI Adult (files in --data_dir); table 1 of Mohri et al. 2019",
    task="adult",
    # Learning rates are what `./run tune` found for 600 rounds, as the page says.
    arms={
        "doctorate": Arm(
            f"L {_DOCTORATE}",
            {**_FIXED, "initial_domain_weights": (1.0, 0.0), "server_learning_rate": 0.04},
        ),
        "non_doctorate": Arm(
            f"L {_OTHERS}",
            {
                **_FIXED,
                "initial_domain_weights": (0.0, 1.0),
                "server_optimizer": "adagrad",
                "server_learning_rate": 0.8,
            },
        ),
        # The task's domain weights are the domains' shares of the rows.
        "uniform": Arm("L uniform", {**_FIXED, "server_learning_rate": 3.0}),
        "stochastic_afl": Arm(
            "L agnostic",
            {
                "algorithm": "stochastic_afl",
                "initial_domain_weights": (0.5, 0.5),
                "server_learning_rate": 2.9,
                "domain_learning_rate": 0.0053,
            },
        ),
        "fed_avg": Arm("FedAvg (uniform)", {"algorithm": "fed_avg", "client_learning_rate": 2.1}),
        "agnostic_fed_avg": Arm(
            "AgnosticFedAvg",
            {
                "algorithm": "agnostic_fed_avg",
                "client_learning_rate": 0.3,
                "domain_learning_rate": 0.1,
            },
        ),
    },
    paper=PaperTable(
        source="Mohri et al. 2019, table 1",
        cells={
            "accuracy": {
                "doctorate": {
                    OVERALL: "53.35 (0.91)",
                    _DOCTORATE: "73.58 (0.48)",
                    _OTHERS: "53.12 (0.89)",
                    WORST: "53.12 (0.89)",
                },
                "non_doctorate": {
                    OVERALL: "82.15 (0.09)",
                    _DOCTORATE: "69.46 (0.29)",
                    _OTHERS: "82.29 (0.09)",
                    WORST: "69.46 (0.29)",
                },
                "uniform": {
                    OVERALL: "82.10 (0.09)",
                    _DOCTORATE: "69.61 (0.35)",
                    _OTHERS: "82.24 (0.09)",
                    WORST: "69.61 (0.35)",
                },
                "stochastic_afl": {
                    OVERALL: "80.10 (0.39)",
                    _DOCTORATE: "71.53 (0.88)",
                    _OTHERS: "80.20 (0.40)",
                    WORST: "71.53 (0.88)",
                },
            }
        },
    ),
    measures=("accuracy",),
    columns=(OVERALL, _DOCTORATE, _OTHERS, WORST),
    curve="accuracy",
    harder_domain=_DOCTORATE,
    trials=50,
)
