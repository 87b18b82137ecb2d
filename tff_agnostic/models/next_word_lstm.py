"""The next-word model for Stack Overflow of Reddi et al. 2021, and that of Mohri et al. 2019."""

from typing import Optional

from tff_agnostic.models.functional import Model
from tff_agnostic.models.next_word import NextWordNetwork, next_word_model


def next_word_lstm(
    vocabulary_size: int = 10_000,
    embedding: int = 96,
    units: int = 670,
    layers: int = 1,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns a next-word LSTM, a `next_word_model`.

    With the defaults it is the model of Reddi et al. 2021, which Ro et al. 2021 train: 4,050,748
    parameters.

    Args:
        vocabulary_size: Number of words.
        embedding: Size of the word vectors, and of the layer after each LSTM.
        units: Units of each LSTM.
        layers: Number of LSTMs.
        sequence_length: T.
        expected_length: Divide the summed loss of a sentence by this; None for the mean.
        seed: Seeds the initial weights.
    """
    network = NextWordNetwork("lstm", embedding, units, layers)
    return next_word_model(network, vocabulary_size, sequence_length, expected_length, seed)


def two_layer_lstm(
    vocabulary_size: int = 10_000,
    embedding: int = 96,
    units: int = 256,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns the two-layer LSTM of Mohri et al. 2019, section 5: `next_word_lstm` with two layers.

    The paper gives the vocabulary of 10,000 words and the number of layers, not their sizes: those
    here are our choice. 2,703,060 parameters with the defaults. Arguments are those of
    `next_word_lstm`.
    """
    return next_word_lstm(
        vocabulary_size, embedding, units, 2, sequence_length, expected_length, seed
    )
