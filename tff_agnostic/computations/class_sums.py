"""Counts of predicted classes by domain and class, as sums over clients.

With up to 20 classes, each domain has a confusion table, which counts examples by class and
predicted class. With more classes, each domain has three counts per class: examples of the class,
examples predicted as the class, and correct predictions. True and false positives follow from
these. With two classes, examples are also counted by true class and by bin of the second class's
predicted probability; ROC curves and calibration follow from these counts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.computations.clients import TRACING, Clients
from tff_agnostic.computations.domain_losses import add_at
from tff_agnostic.computations.round import tensor_specs
from tff_agnostic.models.metrics import ClassScores, takes_scores
from tff_agnostic.models.model import Examples, Model

# Maximum number of classes with a confusion table.
MAX_TABLE_CLASSES = 20
# Number of bins of equal width from 0 to 1; an even number makes 1/2 the border of two bins.
SCORE_BINS = 50
# Maximum number of values that a client sends for a `ClassSums`.
_MAX_VALUES = 50_000


class ClassSums(NamedTuple):
    """Numbers of examples, summed over clients.

    Attributes:
        confusion: Examples by domain, class and predicted class, int64 [p, K, K]; () with more than
            `MAX_TABLE_CLASSES` classes.
        by_class: Three counts per domain and class: examples of the class, examples predicted as
            the class, and correct predictions, int64 [p, 3, K]; () if `confusion` is present.
        scores: Number of examples by domain, class and binned probability of class 1, int64 [p, 2,
            SCORE_BINS]; () unless there are two classes with probabilities.
    """

    confusion: Any = ()
    by_class: Any = ()
    scores: Any = ()


@dataclasses.dataclass(frozen=True)
class ClassCounting:
    """Counts the predictions of a model, as a `domain_losses.ExampleCounter`.

    Attributes:
        num_domains: Number of domains p.
        num_classes: Number of classes K.
    """

    model: Model
    num_domains: int
    num_classes: int

    @property
    def _has_table(self) -> bool:
        return self.num_classes <= MAX_TABLE_CLASSES

    @property
    def _scores(self) -> ClassScores:
        scores = class_scores(self.model)
        assert scores is not None
        return scores

    @functools.cached_property
    def _from_logits(self) -> Optional[bool]:
        """Whether scores are logits; None if unknown, or if scores are not counted."""
        if self.num_classes != 2:
            return None
        from_logits = self._scores.from_logits
        return takes_scores(self.model.loss) if from_logits is None else from_logits

    @property
    def _shapes(self) -> ClassSums:
        p, k = self.num_domains, self.num_classes
        return ClassSums(
            confusion=[p, k, k] if self._has_table else (),
            by_class=() if self._has_table else [p, 3, k],
            scores=() if self._from_logits is None else [p, 2, SCORE_BINS],
        )

    @property
    def num_numbers(self) -> int:
        """Number of values that a client sends."""
        return sum(_size(shape) for shape in self._shapes)

    def start(self, clients: Clients) -> tf.Tensor:
        """Returns each client's zero counts: all fields concatenated, int64 [num_numbers]."""
        shape = tf.concat([tf.shape(clients.num_examples), [self.num_numbers]], axis=0)
        return tf.zeros(shape, tf.int64)

    def examine(self, examples: Examples, predictions: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns each example's predicted class and score bin, int32 [n]; bin 0 if not binned."""
        del examples
        scores = self._scores.from_predictions(predictions)
        predicted = tf.argmax(scores, axis=-1, output_type=tf.int32)
        if self._from_logits is None:
            return predicted, tf.zeros_like(predicted)
        scores = tf.cast(scores, tf.float32)
        positive = scores[:, 1]
        if self._from_logits:
            positive = tf.sigmoid(scores[:, 1] - scores[:, 0])
        bins = tf.cast(tf.math.floor(positive * SCORE_BINS), tf.int32)
        return predicted, tf.clip_by_value(bins, 0, SCORE_BINS - 1)

    def add(
        self,
        total: tf.Tensor,
        examples: Examples,
        is_present: tf.Tensor,
        results: tuple[tf.Tensor, tf.Tensor],
    ) -> tf.Tensor:
        """Adds the results of `examine` to the counts; values are [b], vectorised [G, b]."""
        predicted, bins = results
        domains, labels = examples["domain_id"], tf.cast(examples["y"], tf.int32)
        k = self.num_classes
        is_counted = is_present & (labels >= 0) & (labels < k)
        # Examples with invalid labels are not counted; their labels become 0 only to be valid
        # indices.
        labels = tf.where(is_counted, labels, 0)
        counted = tf.cast(is_counted, tf.int64)
        if self._has_table:
            positions, values = [(domains * k + labels) * k + predicted], [counted]
        else:
            is_right = tf.cast(tf.equal(labels, predicted), tf.int64)
            positions = [
                3 * k * domains + i * k + row for i, row in enumerate((labels, predicted, labels))
            ]
            values = [counted, counted, counted * is_right]
        if self._from_logits is not None:
            first = self.num_domains * k * k
            positions.append(first + (domains * 2 + labels) * SCORE_BINS + bins)
            values.append(counted)
        return add_at(total, tf.concat(positions, axis=-1), tf.concat(values, axis=-1))

    def sums(self, total: tf.Tensor) -> ClassSums:
        """Splits concatenated counts into the fields of `ClassSums`."""
        counts, first, leading = [], 0, tf.shape(total)[:-1]
        for shape in self._shapes:
            size = _size(shape)
            part = total[..., first : first + size]
            counts.append(tf.reshape(part, tf.concat([leading, shape], axis=0)) if shape else ())
            first += size
        return ClassSums(*counts)

    def bounds(self, limits: ClientLimits) -> ClassSums:
        """Returns the bound of every value.

        n examples add at most n in total to a table, so its norm is at most n. In `by_class` they
        add at most n to each of three rows, so its norm is at most sqrt(3) n.
        """
        shapes, n = self._shapes, limits.examples
        table = Bound(n, integer=True)
        rows = dataclasses.replace(table, max_norm=math.sqrt(3) * n)
        bounds = ClassSums(confusion=table, by_class=rows, scores=table)
        return ClassSums(*(bound if shape else () for bound, shape in zip(bounds, shapes)))


def _size(shape: Any) -> int:
    return math.prod(shape) if shape else 0


def class_scores(model: Model) -> Optional[ClassScores]:
    """Returns the class scores of the first metric that defines them."""
    return next((metric.classes for metric in model.metrics if metric.classes is not None), None)


def class_counting(model: Model, num_domains: int) -> Optional[ClassCounting]:
    """Returns the `ClassCounting` of a model.

    None if labels are not single integer classes, or if a client would send too many values.
    """
    scores, labels = class_scores(model), model.example_spec["y"]
    if scores is None or not isinstance(labels, tf.TensorSpec) or len(labels.shape) != 1:
        return None
    if not labels.dtype.is_integer:
        return None
    counting = ClassCounting(model, num_domains, _num_classes(model, scores))
    return counting if counting.num_classes > 1 and counting.num_numbers <= _MAX_VALUES else None


def _num_classes(model: Model, scores: ClassScores) -> int:
    """Returns the number of scored classes; 0 if the output shape does not determine it."""
    if scores.from_logits is not None:
        return 2
    shape = getattr(model.keras_model, "output_shape", None)
    if not isinstance(shape, tuple):
        with TRACING:
            traced = tf.function(
                lambda weights, x: model.predict(weights, x, False, tf.zeros([2], tf.int32)),
                autograph=False,
            ).get_concrete_function(tensor_specs(model.initial_weights), model.example_spec["x"])
        shape = tuple(traced.structured_outputs.shape)
        if shape[1:] == (None,):
            # The output shape of a mixture, for example, is unknown before the model runs.
            one = tf.nest.map_structure(
                lambda s: tf.zeros([1, *(n or 1 for n in s.shape[1:])], s.dtype),
                model.example_spec["x"],
            )
            weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
            shape = tuple(model.predict(weights, one, False, tf.zeros([2], tf.int32)).shape)
    return (shape[1] or 0) if len(shape) == 2 else 0
