"""The model of Spanish keyboards of Ro et al. 2021, which is that of Hard et al. 2018."""

from typing import Optional

from tff_agnostic.models.functional import Model
from tff_agnostic.models.next_word import NextWordNetwork, next_word_model


def keyboard_cifg(
    vocabulary_size: int = 10_000,
    units: int = 670,
    projection: int = 96,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    embedding_scale: float = 0.05,
    seed: int = 0,
) -> Model:
    """Returns a next-word CIFG with tied embeddings, a `next_word_model`.

    One CIFG layer whose state is projected to the size of the word vectors; the score of a word is
    the product of that projection with the word's vector, and a bias. 1,422,638 parameters with the
    defaults, about the 1.4 million of Hard et al. 2018, "Federated learning for mobile keyboard
    prediction".

    Args:
        vocabulary_size: Number of words.
        units: Units of the CIFG.
        projection: Size of its projection, and of the word vectors.
        sequence_length: T.
        expected_length: Divide the summed loss of a sentence by this; None for the mean.
        embedding_scale: See `NextWordNetwork`.
        seed: Seeds the initial weights.
    """
    network = NextWordNetwork("cifg", projection, units, tied=True, embedding_scale=embedding_scale)
    return next_word_model(network, vocabulary_size, sequence_length, expected_length, seed)
