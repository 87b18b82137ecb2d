"""The experiments of Mohri et al. 2019: Adult, Fashion-MNIST, two kinds of text."""

from __future__ import annotations

from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.program.experiments.experiment import Experiment, PaperTable, arm, printed
from tff_agnostic.program.studies.comparison import OVERALL, WORST

_DOCTORATE, _OTHERS = "doctorate", "non-doctorate"
ADULT = Experiment(
    title="Adult: doctorate or not",
    task="adult",
    # The learning rates are the best that `./run tune` found for 600 rounds.
    arms={
        "doctorate": arm(
            f"L {_DOCTORATE}",
            "stochastic_afl",
            lambda_update="fixed",
            lambda_initial=(1.0, 0.0),
            server_learning_rate=0.04,
        ),
        "non_doctorate": arm(
            f"L {_OTHERS}",
            "stochastic_afl",
            lambda_update="fixed",
            lambda_initial=(0.0, 1.0),
            server_optimizer="adagrad",
            server_learning_rate=0.8,
        ),
        # By default, this task's lambda is each domain's fraction of the rows.
        "uniform": arm(
            "L uniform", "stochastic_afl", lambda_update="fixed", server_learning_rate=3.0
        ),
        "stochastic_afl": arm(
            "L agnostic",
            "stochastic_afl",
            lambda_initial=(0.5, 0.5),
            server_learning_rate=2.9,
            lambda_learning_rate=0.0053,
        ),
        "fed_avg": arm("FedAvg", "fed_avg", client_learning_rate=2.1),
        "agnostic_fed_avg": arm(
            "AgnosticFedAvg",
            "agnostic_fed_avg",
            lambda_absent="zero",
            client_learning_rate=0.3,
            lambda_learning_rate=0.1,
        ),
    },
    paper=PaperTable(
        source="Mohri et al. 2019, table 1",
        cells={
            "accuracy": printed(
                (OVERALL, _DOCTORATE, _OTHERS, WORST),
                {
                    "doctorate": "53.35 (0.91) | 73.58 (0.48) | 53.12 (0.89) | 53.12 (0.89)",
                    "non_doctorate": "82.15 (0.09) | 69.46 (0.29) | 82.29 (0.09) | 69.46 (0.29)",
                    "uniform": "82.10 (0.09) | 69.61 (0.35) | 82.24 (0.09) | 69.61 (0.35)",
                    "stochastic_afl": "80.10 (0.39) | 71.53 (0.88) | 80.20 (0.40) | 71.53 (0.88)",
                },
            )
        },
    ),
    measures=("accuracy",),
    columns=(OVERALL, _DOCTORATE, _OTHERS, WORST),
    curve="accuracy",
    harder_domain=_DOCTORATE,
    trials=50,
)
_SHIRT, _PULLOVER, _T_SHIRT = "shirt", "pullover", "t-shirt/top"
FASHION_MNIST = Experiment(
    title="Fashion-MNIST: three garments",
    task="fashion_mnist",
    # The learning rates are the best that `./run tune` found.
    arms={
        "uniform": arm(
            "L uniform", "stochastic_afl", lambda_update="fixed", server_learning_rate=0.027
        ),
        "stochastic_afl": arm(
            "L agnostic", "stochastic_afl", server_learning_rate=0.016, lambda_learning_rate=0.026
        ),
        "fed_avg": arm("FedAvg", "fed_avg", client_learning_rate=0.016, server_learning_rate=0.034),
        "agnostic_fed_avg": arm(
            "AgnosticFedAvg",
            "agnostic_fed_avg",
            lambda_absent="zero",
            client_learning_rate=0.023,
            server_learning_rate=0.0011,
            lambda_learning_rate=0.044,
        ),
    },
    paper=PaperTable(
        source="Mohri et al. 2019, table 2",
        cells={
            "accuracy": printed(
                (OVERALL, _SHIRT, _PULLOVER, _T_SHIRT, WORST),
                {
                    "uniform": "81.8 (1.3) | 71.2 (7.8) | 87.8 (6.0) | 86.2 (4.9) | 71.2 (7.8)",
                    "stochastic_afl": (
                        "82.3 (0.9) | 74.5 (6.0) | 87.6 (4.5) | 84.9 (4.4) | 74.5 (6.0)"
                    ),
                },
            )
        },
    ),
    trials=10,
    measures=("accuracy",),
    columns=(OVERALL, _SHIRT, _PULLOVER, _T_SHIRT, WORST),
    curve="accuracy",
    harder_domain=_SHIRT,
    raw_data=ImportOptions(format="idx", classes=(0, 2, 6)),
)
_DOCUMENTS, _CONVERSATIONS = "documents", "conversations"
TWO_DOMAIN_LM = Experiment(
    title="Documents and conversations: a language model",
    task="two_domain_lm",
    arms={
        **{
            f"fed_avg_{name}": arm(f"L {name}", "fed_avg_target_only", target_domain=name)
            for name in (_DOCUMENTS, _CONVERSATIONS)
        },
        "fed_avg": arm("L uniform", "fed_avg"),
        "agnostic_fed_avg": arm("L agnostic", "agnostic_fed_avg", lambda_absent="zero"),
    },
    paper=PaperTable(
        source="Mohri et al. 2019, table 3 (Penn Treebank and Cornell movie dialogues)",
        cells={
            "perplexity": printed(
                (OVERALL, _DOCUMENTS, _CONVERSATIONS, WORST),
                {
                    "fed_avg_documents": "414.96 | 83.97 | 615.75 | 615.75",
                    "fed_avg_conversations": "108.97 | 1138.76 | 61.01 | 1138.76",
                    "fed_avg": "68.18 | 96.98 | 62.50 | 96.98",
                    "agnostic_fed_avg": "79.98 | 86.33 | 78.48 | 86.33",
                },
            )
        },
    ),
    measures=("perplexity",),
    columns=(OVERALL, _DOCUMENTS, _CONVERSATIONS, WORST),
    curve="perplexity",
    harder_domain=_DOCUMENTS,
    raw_data=ImportOptions(
        format="text_folders",
        tokenizer="words",
        case="upper",
        punctuation="drop",
        sentences_per_client=30,
        split_by="group",
        # The documented table was made with this setting.
        stratify=False,
    ),
)
