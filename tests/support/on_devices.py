"""A script that runs rounds on a number of logical devices, and prints a hash of them as JSON.

It runs in a separate process, as TensorFlow accepts logical devices only before it starts.
"""

import hashlib
import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.algorithms import build
from tests.support.clients import random_client
from tests.support.options import options_in_mode
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import logistic_regression
from tff_agnostic.runtimes.cohort import CohortRuntime

_DOMAINS = 3


def main(num_devices: int, mode: str) -> None:
    _split_the_cpu(num_devices)
    print(json.dumps(rounds_on_devices(mode)))


def rounds_on_devices(mode: str) -> dict[str, Any]:
    """Returns a hash of some rounds' results, and the numbers of all and of used devices."""
    with CohortRuntime(options_in_mode(mode, 3)) as runtime:
        lanes = runtime.running_lanes()
        shards = range(20 * lanes.num_lanes)
        used = set(lanes.map_in_order(lambda _: tf.zeros([1]).device, shards))
        return {
            "devices": len(tf.config.list_logical_devices()),
            "used": len(used),
            "bits": _round_bits(runtime),
        }


def _split_the_cpu(num_devices: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * num_devices
    tf.config.set_logical_device_configuration(cpu, logical)


def _round_bits(runtime: CohortRuntime) -> str:
    model = logistic_regression(4, 3)
    algorithm = build("agnostic_fed_avg", model, _DOMAINS, client_learning_rate=0.5)
    training = runtime.training(algorithm, PlainSum())
    evaluate = runtime.evaluation(model, _DOMAINS, PlainSum())
    rng = np.random.default_rng(0)
    state, results = training.initialize(), []
    for _ in range(2):
        cohort = [random_client(rng, n, range(_DOMAINS)) for n in rng.integers(12, size=40)]
        state, metrics = training.next(state, cohort)
        results += [state, metrics, evaluate(state.algorithm.weights, [cohort])]
    leaves = [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(results)]
    return hashlib.sha256(b"".join(leaves)).hexdigest()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
