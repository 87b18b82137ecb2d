"""How a model answers, by domain and class: counts of examples, which sums over clients carry.

Of up to 20 classes it is a confusion table of each domain: how many examples of each class get each
answer. Of more it is how many examples each class has, gets, and gets rightly; true and false
positives follow. Of two classes the model's probability of the second one is counted on a grid, by
class: of these counts are ROC curves and calibration.
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
from tff_agnostic.computations.round import specs_of
from tff_agnostic.models.metrics import ClassScores, takes_scores
from tff_agnostic.models.model import Examples, Model

# With more classes there is no confusion table.
MOST_IN_TABLE = 20
# Bins of equal width from 0 to 1; a threshold of 1/2 lies between two of them.
SCORE_BINS = 50
# More numbers than that cost an evaluation too much.
_MOST_NUMBERS = 50_000


class ClassSums(NamedTuple):
    """Numbers of examples; a client has each of its examples in each field once at most.

    Attributes:
        confusion: By domain, class and answer, int64 [p, K, K]; () of more classes than
            `MOST_IN_TABLE`.
        by_class: By domain and class: examples that have it, that get it as answer, and both,
            int64 [p, 3, K]; () where there is `confusion`.
        scores: Of two classes, by domain, class and the probability of class 1,
            int64 [p, 2, SCORE_BINS]; () otherwise, and of models that do not say probabilities.
    """

    confusion: Any = ()
    by_class: Any = ()
    scores: Any = ()


@dataclasses.dataclass(frozen=True)
class ClassCounting:
    """Counts the answers of a model, as a `domain_losses.ExampleCounter`.

    Attributes:
        model: Whose answers they are.
        num_domains: p.
        num_classes: K.
    """

    model: Model
    num_domains: int
    num_classes: int

    @property
    def _has_table(self) -> bool:
        return self.num_classes <= MOST_IN_TABLE

    @property
    def _scores(self) -> ClassScores:
        found = class_scores(self.model)
        assert found is not None
        return found

    @functools.cached_property
    def _from_logits(self) -> Optional[bool]:
        """Whether scores are logits; None if nobody says, or probabilities are not counted."""
        if self.num_classes != 2:
            return None
        of_metric = self._scores.from_logits
        return takes_scores(self.model.loss) if of_metric is None else of_metric

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
        """How many numbers a client sends."""
        return sum(_size(shape) for shape in self._shapes)

    def start(self, clients: Clients) -> tf.Tensor:
        """Returns counts over no examples: all of a client's numbers one after another, int64."""
        shape = tf.concat([tf.shape(clients.num_examples), [self.num_numbers]], axis=0)
        return tf.zeros(shape, tf.int64)

    def of_client(self, examples: Examples, predictions: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the answer to each example, int32 [n], and the bin of its score; 0 if none."""
        del examples
        scores = self._scores.of(predictions)
        answers = tf.argmax(scores, axis=-1, output_type=tf.int32)
        if self._from_logits is None:
            return answers, tf.zeros_like(answers)
        scores = tf.cast(scores, tf.float32)
        of_one = scores[:, 1]
        if self._from_logits:
            of_one = tf.sigmoid(scores[:, 1] - scores[:, 0])
        bins = tf.cast(tf.math.floor(of_one * SCORE_BINS), tf.int32)
        return answers, tf.clip_by_value(bins, 0, SCORE_BINS - 1)

    def add(
        self,
        total: tf.Tensor,
        examples: Examples,
        is_present: tf.Tensor,
        found: tuple[tf.Tensor, tf.Tensor],
    ) -> tf.Tensor:
        """Adds what `of_client` found; values are [b], vectorised [G, b]."""
        answers, bins = found
        domains, labels = examples["domain_id"], tf.cast(examples["y"], tf.int32)
        k = self.num_classes
        is_counted = is_present & (labels >= 0) & (labels < k)
        # A label that is no class has no place of its own.
        labels = tf.where(is_counted, labels, 0)
        counted = tf.cast(is_counted, tf.int64)
        if self._has_table:
            places, values = [(domains * k + labels) * k + answers], [counted]
        else:
            is_right = tf.cast(tf.equal(labels, answers), tf.int64)
            places = [
                3 * k * domains + i * k + of for i, of in enumerate((labels, answers, labels))
            ]
            values = [counted, counted, counted * is_right]
        if self._from_logits is not None:
            first = self.num_domains * k * k
            places.append(first + (domains * 2 + labels) * SCORE_BINS + bins)
            values.append(counted)
        return add_at(total, tf.concat(places, axis=-1), tf.concat(values, axis=-1))

    def sums(self, total: tf.Tensor) -> ClassSums:
        """Returns the counts of all numbers one after another."""
        found, first, leading = [], 0, tf.shape(total)[:-1]
        for shape in self._shapes:
            size = _size(shape)
            part = total[..., first : first + size]
            found.append(tf.reshape(part, tf.concat([leading, shape], axis=0)) if shape else ())
            first += size
        return ClassSums(*found)

    def bounds(self, limits: ClientLimits) -> ClassSums:
        """Returns the bound of every value.

        An example adds 1 to one entry of a table, whose norm is at most n of n examples then; and
        to one entry of each of the three rows of `by_class`, of which none has a larger norm.
        """
        shapes, n = self._shapes, limits.examples
        table = Bound(n, integer=True)
        rows = dataclasses.replace(table, max_norm=math.sqrt(3) * n)
        bounds = ClassSums(confusion=table, by_class=rows, scores=table)
        return ClassSums(*(bound if shape else () for bound, shape in zip(bounds, shapes)))


def _size(shape: Any) -> int:
    return math.prod(shape) if shape else 0


def class_scores(model: Model) -> Optional[ClassScores]:
    """Returns how predictions score classes, from the first metric that says so."""
    return next((metric.classes for metric in model.metrics if metric.classes is not None), None)


def class_counting(model: Model, num_domains: int) -> Optional[ClassCounting]:
    """Returns what counts the answers of a model.

    None if its labels are not one class each, or if there would be too many numbers.
    """
    scores, labels = class_scores(model), model.example_spec["y"]
    if scores is None or not isinstance(labels, tf.TensorSpec) or len(labels.shape) != 1:
        return None
    if not labels.dtype.is_integer:
        return None
    found = ClassCounting(model, num_domains, _num_classes(model, scores))
    return found if found.num_classes > 1 and found.num_numbers <= _MOST_NUMBERS else None


def _num_classes(model: Model, scores: ClassScores) -> int:
    """Returns how many classes are scored; 0 if that is not known before there are examples."""
    if scores.from_logits is not None:
        return 2
    shape = getattr(model.keras_model, "output_shape", None)
    if not isinstance(shape, tuple):
        with TRACING:
            traced = tf.function(
                lambda weights, x: model.predict(weights, x, False, tf.zeros([2], tf.int32)),
                autograph=False,
            ).get_concrete_function(specs_of(model.initial_weights), model.example_spec["x"])
        shape = tuple(traced.structured_outputs.shape)
        if shape[1:] == (None,):
            # As of a mixture, whose outputs are stacked.
            one = tf.nest.map_structure(
                lambda s: tf.zeros([1, *(n or 1 for n in s.shape[1:])], s.dtype),
                model.example_spec["x"],
            )
            weights = tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
            shape = tuple(model.predict(weights, one, False, tf.zeros([2], tf.int32)).shape)
    return (shape[1] or 0) if len(shape) == 2 else 0
