"""Adult, section 5.1 of Mohri et al. 2019."""

from tff_agnostic.experiments.experiment import Experiment, PaperTable
from tff_agnostic.program.arms import Arm
from tff_agnostic.program.comparison import OVERALL, WORST

_DOCTORATE, _OTHERS = "doctorate", "non-doctorate"
_ADAGRAD = {"server_optimizer": "adagrad"}

ADULT = Experiment(
    title="Adult: doctorate or not",
    summary="UCI Adult (files in --data_dir); table 1 of Mohri et al. 2019",
    task="adult",
    arms={
        "fed_avg_doctorate": Arm(
            "L doctorate",
            {"algorithm": "fed_avg_target_only", "target_domain": _DOCTORATE, **_ADAGRAD},
        ),
        "fed_avg_non_doctorate": Arm(
            "L non-doctorate",
            {"algorithm": "fed_avg_target_only", "target_domain": _OTHERS, **_ADAGRAD},
        ),
        "fed_avg": Arm("L uniform", {"algorithm": "fed_avg", **_ADAGRAD}),
        "agnostic_fed_avg": Arm("L agnostic", {"algorithm": "agnostic_fed_avg", **_ADAGRAD}),
    },
    paper=PaperTable(
        source="Mohri et al. 2019, table 1",
        cells={
            "accuracy": {
                "fed_avg_doctorate": {
                    OVERALL: "53.35 (0.91)",
                    _DOCTORATE: "73.58 (0.48)",
                    _OTHERS: "53.12 (0.89)",
                    WORST: "53.12 (0.89)",
                },
                "fed_avg_non_doctorate": {
                    OVERALL: "82.15 (0.09)",
                    _DOCTORATE: "69.46 (0.29)",
                    _OTHERS: "82.29 (0.09)",
                    WORST: "69.46 (0.29)",
                },
                "fed_avg": {
                    OVERALL: "82.10 (0.09)",
                    _DOCTORATE: "69.61 (0.35)",
                    _OTHERS: "82.24 (0.09)",
                    WORST: "69.61 (0.35)",
                },
                "agnostic_fed_avg": {
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
