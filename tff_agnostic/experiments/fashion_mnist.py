"""Fashion-MNIST, section 5.2 of Mohri et al. 2019."""

from tff_agnostic.experiments.experiment import Experiment, PaperTable
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.program.comparing.trial_results import OVERALL, WORST
from tff_agnostic.program.specs.arms import Arm

_STOCHASTIC_AFL = {"algorithm": "stochastic_afl"}
_SHIRT, _PULLOVER, _T_SHIRT = "shirt", "pullover", "t-shirt/top"

FASHION_MNIST = Experiment(
    title="Fashion-MNIST: three garments",
    summary="IDX files of Fashion-MNIST in --data_dir; table 2 of Mohri et al. 2019",
    task="fashion_mnist",
    # Learning rates are what `./run tune` found, as the page says.
    arms={
        "uniform": Arm(
            "L uniform",
            {**_STOCHASTIC_AFL, "domain_weight_update": "fixed", "server_learning_rate": 0.027},
        ),
        "stochastic_afl": Arm(
            "L agnostic",
            {**_STOCHASTIC_AFL, "server_learning_rate": 0.016, "domain_learning_rate": 0.026},
        ),
        "fed_avg": Arm(
            "FedAvg (uniform)",
            {
                "algorithm": "fed_avg",
                "client_learning_rate": 0.016,
                "server_learning_rate": 0.034,
            },
        ),
        "agnostic_fed_avg": Arm(
            "AgnosticFedAvg",
            {
                "algorithm": "agnostic_fed_avg",
                "client_learning_rate": 0.023,
                "server_learning_rate": 0.0011,
                "domain_learning_rate": 0.044,
            },
        ),
    },
    paper=PaperTable(
        source="Mohri et al. 2019, table 2",
        cells={
            "accuracy": {
                "uniform": {
                    OVERALL: "81.8 (1.3)",
                    _SHIRT: "71.2 (7.8)",
                    _PULLOVER: "87.8 (6.0)",
                    _T_SHIRT: "86.2 (4.9)",
                    WORST: "71.2 (7.8)",
                },
                "stochastic_afl": {
                    OVERALL: "82.3 (0.9)",
                    _SHIRT: "74.5 (6.0)",
                    _PULLOVER: "87.6 (4.5)",
                    _T_SHIRT: "84.9 (4.4)",
                    WORST: "74.5 (6.0)",
                },
            }
        },
    ),
    trials=10,
    measures=("accuracy",),
    columns=(OVERALL, _SHIRT, _PULLOVER, _T_SHIRT, WORST),
    curve="accuracy",
    harder_domain=_SHIRT,
    raw_data=ImportOptions(format="idx", classes=(0, 2, 6)),
)
