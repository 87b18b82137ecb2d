"""Spanish keyboard: the next word in the Spanish of several countries.

As in section 5.2 of Ro et al. 2021, with the model of Hard et al. 2018, a CIFG with tied
embeddings, and Nesterov momentum at the server. The domains, whatever locales the store names, are
a client partition. The paper's data are private: any store of texts by country takes their place.
"""

import dataclasses

from tff_agnostic.models.next_word import NextWordNetwork
from tff_agnostic.settings import setting
from tff_agnostic.tasks.language import StoredTextOptions, stored_text_task


@dataclasses.dataclass(frozen=True)
class SpanishKeyboardOptions(StoredTextOptions):
    """Options of the task."""

    projection: int = setting(96, "Size of the recurrent projection and of the word vectors.")
    units: int = setting(670, "Units of the CIFG.")


def _network(options: SpanishKeyboardOptions) -> NextWordNetwork:
    return NextWordNetwork("cifg", options.projection, options.units, tied=True)


TASK = stored_text_task(
    "spanish_keyboard",
    summary="next word in Spanish, CIFG with tied embeddings; domains the store's locales (--data)",
    options=SpanishKeyboardOptions,
    network=_network,
    defaults={
        "rounds": 3000,
        "clients_per_round": 500,
        "batch_size": 50,
        "client_learning_rate": 0.5,
        "server_optimizer": "nesterov",
        "server_learning_rate": 1.0,
        "server_momentum": 0.9,
        "domain_learning_rate": 0.005,
        "batch_normalizer": "batch",
        "evaluate_every": 100,
    },
)
