"""Why sampled predictors are gathered before a broadcast: what TFF's federated_select can be in."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model

_Q, _OUTCOMES, _DRAWN = 5, 7, (3, 1)
_SCORES = np.random.default_rng(0).normal(size=[_Q, _OUTCOMES]).astype(np.float32)
_TABLE_TYPE = tff.TensorType(np.float32, [_OUTCOMES, _Q])
_PREDICTOR_TYPE = tff.TensorType(np.float32, [_OUTCOMES])


def _round(select: Any) -> tff.Computation:
    """A round whose clients get predictors by the keys that the server drew, and add them up."""

    @tff.tensorflow.computation(_TABLE_TYPE)
    def drawn(table: tf.Tensor) -> tf.Tensor:
        del table
        return tf.constant(_DRAWN)

    @tff.tensorflow.computation(_TABLE_TYPE, np.int32)
    def predictor(table: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.gather(table, key, axis=1)

    @tff.tensorflow.computation(tff.SequenceType(_PREDICTOR_TYPE), np.float32)
    def answer(predictors: tf.data.Dataset, weight: tf.Tensor) -> tf.Tensor:
        return weight * predictors.reduce(tf.zeros([_OUTCOMES]), tf.add)

    @tff.federated_computation(
        tff.FederatedType(_TABLE_TYPE, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS)
    )
    def next_round(table: Any, weights: Any) -> Any:
        keys = tff.federated_broadcast(tff.federated_map(drawn, table))
        predictors = select(keys, tff.federated_value(_Q, tff.SERVER), table, predictor)
        return table, tff.federated_sum(tff.federated_map(answer, (predictors, weights)))

    return next_round


@pytest.mark.slow
@pytest.mark.parametrize("select", [tff.federated_select, tff.federated_secure_select])
def test_no_form_of_a_round_holds_it(select):
    """Neither that of exports and of the check of secure sums, nor that of daf plans."""
    forms = tff.backends.mapreduce
    with pytest.raises(ValueError, match="not currently reducible to aggregate or broadcast"):
        forms.get_map_reduce_form_for_computation(_round(select))
    with pytest.raises(Exception, match="Cannot force-align intrinsics"):
        forms.get_distribute_aggregate_form_for_computation(_round(select))


@pytest.mark.nightly
def test_it_gives_what_the_broadcast_has(tff_runtime):
    model = ensemble(unigram_model(_OUTCOMES), [ModelWeights([row], []) for row in _SCORES])
    (table,) = model.initial_weights.non_trainable
    assert model.members is not None
    (sent,) = model.members.chosen([tf.constant(table)], tf.constant(_DRAWN))
    _, found = _round(tff.federated_select)(table, [1.0, 2.0])
    np.testing.assert_allclose(found, 3 * np.sum(sent, axis=1), rtol=1e-6)
