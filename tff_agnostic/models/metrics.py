"""Metrics as ratios of sums: exact under any batching, and ready for secure sums."""

import dataclasses
from typing import Callable, Literal, Optional

import tensorflow as tf

# (labels, predictions) -> (numerator [n], denominator [n]), both float32.
PerExampleFn = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric made of the ratio sum(numerator) / sum(denominator) over any set of examples.

    Its value is the ratio itself, or with `transform` a function of it, such as perplexity, the
    exponential of a mean cross-entropy. Clients and sums know ratios; whatever is reported is a
    value. As the function is applied last, the mean over clients of a transformed metric is that of
    the clients' mean ratio: of perplexity, the geometric mean.

    Attributes:
        name: Column and JSON name.
        per_example: Maps labels and predictions of n examples to two float32 vectors [n].
        max_numerator: Largest numerator of one example; the bound of its secure sum.
        max_denominator: Largest denominator of one example; the bound of its secure sum.
        upper: Largest value of the ratio, or None if there is none; it sets the grid on which the
            distribution over clients is measured. Ratios beyond it fall into its last bin, and
            secure sums clip them there.
        higher_is_better: Which direction is good, for "worst domain" and for tables.
        transform: An increasing function of the ratio, in TensorFlow, or None.
        num_bins: Number of points of the grid from 0 to `upper`.
        shown_as: "none" for plain numbers, "share" for numbers in [0, 1] that people read in
            percent, "factor" for ones that are compared by ratios, on logarithmic axes.
    """

    name: str
    per_example: PerExampleFn
    max_numerator: float = 1.0
    max_denominator: float = 1.0
    upper: Optional[float] = 1.0
    higher_is_better: bool = True
    transform: Optional[Callable[[tf.Tensor], tf.Tensor]] = None
    num_bins: int = 201
    shown_as: Literal["none", "share", "factor"] = "none"

    def value(self, ratio: tf.Tensor) -> tf.Tensor:
        """Returns the metric's values from ratios of any shape; too large ones are infinite."""
        return ratio if self.transform is None else self.transform(ratio)


def _correct_class(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    predicted = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
    correct = tf.cast(tf.equal(predicted, labels), tf.float32)
    # Not ones_like, which has no vectorised form.
    return correct, tf.ones(tf.shape(correct))


def accuracy() -> Metric:
    """Share of examples whose largest score is the label's: labels int [n], scores [n, classes]."""
    return Metric("accuracy", _correct_class, shown_as="share")
