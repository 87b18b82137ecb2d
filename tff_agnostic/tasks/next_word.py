"""The next word of any texts: domains are whatever the store names, the model is chosen by flags.

The papers' next-word tasks are settings of it, with flags and defaults of their own.
"""

import dataclasses

from tff_agnostic.models.next_word import CELLS, NextWordNetwork
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import NEXT_WORD_DEFAULTS, StoredTextOptions, stored_text_task


@dataclasses.dataclass(frozen=True)
class NextWordOptions(StoredTextOptions):
    """Options of the task."""

    cell: str = setting(
        "lstm",
        "Recurrent cell: lstm, with a dense layer after it; or cifg, with three quarters of its "
        "weights, projected.",
        choices=CELLS,
    )
    embedding: int = setting(96, "Size of the word vectors, and of each projection.")
    units: int = setting(256, "Units of each recurrent layer.")
    layers: int = setting(1, "Number of recurrent layers.")
    tied: bool = setting(
        False, "Whether words are scored by their own vectors, which saves a matrix of that size."
    )


def _network(options: NextWordOptions) -> NextWordNetwork:
    return NextWordNetwork(
        options.cell, options.embedding, options.units, options.layers, options.tied
    )


TASK = stored_text_task(
    "next_word",
    summary="next word of any texts, LSTM or CIFG by flags; domains the store's (--data)",
    options=NextWordOptions,
    network=_network,
    defaults={
        **NEXT_WORD_DEFAULTS,
        "rounds": 500,
        "clients_per_round": 10,
        "evaluate_every": 25,
    },
)
