"""Documents and conversations: a language model for two kinds of text.

As in section 5.3 of Mohri et al. 2019: text in capitals without punctuation, 10,000 words, an LSTM
of two layers, momentum. They used the Penn Treebank and the Cornell movie dialogues, which
`import_data --format=text_folders --case=upper --punctuation=drop` turns into a store; the domains
are whatever the store names.
"""

import dataclasses

from tff_agnostic.models.next_word import NextWordNetwork
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import StoredTextOptions, stored_text_task


@dataclasses.dataclass(frozen=True)
class TwoDomainOptions(StoredTextOptions):
    """Options of the task."""

    embedding: int = setting(96, "Size of the word vectors.")
    units: int = setting(256, "Units of each LSTM.")


def _network(options: TwoDomainOptions) -> NextWordNetwork:
    return NextWordNetwork("lstm", options.embedding, options.units, layers=2)


TASK = stored_text_task(
    "two_domain_lm",
    summary="next word in two kinds of text, two-layer LSTM; domains the store's (--data)",
    options=TwoDomainOptions,
    network=_network,
    defaults={
        "rounds": 500,
        "clients_per_round": 10,
        "batch_size": 20,
        "client_learning_rate": 1.0,
        "server_optimizer": "momentum",
        "server_learning_rate": 0.3,
        "server_momentum": 0.9,
        "domain_learning_rate": 0.01,
        "batch_normalizer": "batch",
        "evaluate_every": 25,
    },
)
