"""EMNIST, appendix C of Ro et al. 2021."""

import dataclasses

from tff_agnostic.experiments.experiment import Experiment, PaperTable, fed_avg_arms
from tff_agnostic.importing.records.options import ImportOptions
from tff_agnostic.program.comparing.trial_results import DIFFERENCE
from tff_agnostic.tasks.emnist import CENSUS, HIGH_SCHOOL

_PAPER = PaperTable(
    source="Ro et al. 2021, table 6 (EMNIST-62)",
    cells={
        "accuracy": {
            "fed_avg": {HIGH_SCHOOL: "82.6 (1.0)", CENSUS: "86.3 (0.5)", DIFFERENCE: "3.7"},
            "fed_avg_target_only": {
                HIGH_SCHOOL: "88.2 (0.3)",
                CENSUS: "75.1 (0.2)",
                DIFFERENCE: "13.1",
            },
            "agnostic_fed_avg": {
                HIGH_SCHOOL: "85.7 (0.9)",
                CENSUS: "84.9 (1.1)",
                DIFFERENCE: "0.8",
            },
        }
    },
)
_COLUMNS = (HIGH_SCHOOL, CENSUS, DIFFERENCE)

EMNIST = Experiment(
    title="EMNIST-62: high-school and census writers",
    summary="EMNIST-62 with TFF's data; table 6 of Ro et al. 2021",
    task="emnist",
    arms=fed_avg_arms(HIGH_SCHOOL),
    paper=_PAPER,
    measures=("accuracy",),
    columns=_COLUMNS,
    curve="accuracy",
    harder_domain=HIGH_SCHOOL,
)

# What `./run tune` found for 120 rounds (--scale=0.08), as the page says.
_STEPS = {"client_learning_rate": 0.086, "server_learning_rate": 0.019}
_TUNED = {
    "fed_avg": _STEPS,
    "fed_avg_target_only": _STEPS,
    "agnostic_fed_avg": {**_STEPS, "domain_learning_rate": 0.05, "window": 15},
}

MNIST_BY_WRITER = dataclasses.replace(
    EMNIST,
    arms={
        name: dataclasses.replace(arm, settings={**arm.settings, **_TUNED[name]})
        for name, arm in EMNIST.arms.items()
    },
    title="MNIST by writer: high-school and census writers",
    summary="EMNIST's digits alone, from mnist_by_writer.npz; beside table 6 of Ro et al. 2021",
    task_options={
        "num_classes": 10,
        # As 500 beside 2900 census writers are in the paper: 50 beside 289.
        "high_school_writers": 50,
    },
    raw_data=ImportOptions(
        format="npz",
        client_column="writer",
        domain_column="hsf",
        domain_names=(f"4:{HIGH_SCHOOL}", f"0:{CENSUS}"),
    ),
)
