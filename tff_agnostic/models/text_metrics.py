"""Metrics of next-word models: perplexity, and two definitions of in-vocabulary accuracy.

Labels are ids of `TokenIds`, int [n, T]; predictions are scores, float [n, T, ids]. An example is a
sentence: numerators and denominators are sums over its words, so that every word has the same
weight whatever sentence it is in. Padding is in none of them.

What two metrics, or a metric and the loss, compute alike, such as the largest score of a word, is
written down in each and computed once: TensorFlow merges equal operations of a graph.
"""

from collections.abc import Sequence

import tensorflow as tf

from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.sentences import is_word, word_cross_entropies
from tff_agnostic.text_ids import TokenIds

# Of a word's cross-entropy, in nats: more than twice that of guessing among 10,000 words. Beyond
# it distributions over clients do not tell values apart, and secure sums clip.
_MAX_CROSS_ENTROPY = 20.0


def text_metrics(ids: TokenIds, sequence_length: int) -> tuple[Metric, ...]:
    """Returns perplexity and both in-vocabulary accuracies.

    Args:
        ids: What the ids stand for.
        sequence_length: T, the largest number of words of a sentence.
    """
    return (
        perplexity(sequence_length),
        in_vocab_accuracy(ids, sequence_length),
        accuracy_without_out_of_vocab_or_end_of_sentence(ids, sequence_length),
    )


def perplexity(sequence_length: int) -> Metric:
    """Returns the exponential of the mean cross-entropy of a word.

    Words are all positions but padding: those out of the vocabulary and the end of the sentence
    have to be predicted too. The ratio that is summed is the mean cross-entropy in nats.
    """

    def per_sentence(labels: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total = tf.reduce_sum(word_cross_entropies(labels, scores), axis=1)
        return total, tf.reduce_sum(is_word(labels), axis=1)

    return Metric(
        "perplexity",
        per_sentence,
        max_numerator=_MAX_CROSS_ENTROPY * sequence_length,
        max_denominator=float(sequence_length),
        upper=_MAX_CROSS_ENTROPY,
        higher_is_better=False,
        transform=tf.exp,
        # Steps of 0.02 nats: quantiles of perplexity over clients are right to 1%.
        num_bins=1001,
        shown_as="factor",
    )


def in_vocab_accuracy(ids: TokenIds, sequence_length: int) -> Metric:
    """Returns the in-vocabulary accuracy of Ro et al. 2021, section 5.1.

    Correct predictions, without those of UNK (out of the vocabulary) or the end of a sentence,
    divided by the number of words without the end of a sentence. A word out of the vocabulary is in
    the denominator and can never be right, so that vocabularies of different sizes compare.
    """
    return _word_accuracy(
        "in_vocab_accuracy", sequence_length, never_right=[ids.oov, ids.eos], left_out=[ids.eos]
    )


def accuracy_without_out_of_vocab_or_end_of_sentence(ids: TokenIds, sequence_length: int) -> Metric:
    """Returns the accuracy on words of the vocabulary, as TFF's Stack Overflow baseline has it.

    Words out of the vocabulary and the end of a sentence are neither in the numerator nor in the
    denominator.
    """
    return _word_accuracy(
        "accuracy_without_out_of_vocab_or_end_of_sentence",
        sequence_length,
        never_right=[ids.oov, ids.eos],
        left_out=[ids.oov, ids.eos],
    )


def _word_accuracy(
    name: str, sequence_length: int, never_right: Sequence[int], left_out: Sequence[int]
) -> Metric:
    def per_sentence(labels: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        predicted = tf.argmax(scores, axis=-1, output_type=labels.dtype)
        correct = tf.cast(tf.equal(predicted, labels), tf.float32)
        words = is_word(labels)
        counted = words * _is_none_of(labels, left_out)
        correct *= words * _is_none_of(labels, never_right)
        return tf.reduce_sum(correct, axis=1), tf.reduce_sum(counted, axis=1)

    longest = float(sequence_length)
    return Metric(
        name, per_sentence, max_numerator=longest, max_denominator=longest, shown_as="share"
    )


def _is_none_of(labels: tf.Tensor, ids: Sequence[int]) -> tf.Tensor:
    found = [tf.cast(tf.not_equal(labels, one), tf.float32) for one in ids]
    return tf.reduce_prod(tf.stack(found), axis=0)
