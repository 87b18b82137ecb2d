"""How computations are compiled to TFF's forms, in which a round's parts can be looked at."""

import tensorflow as tf


def without_graph_optimization() -> tf.compat.v1.ConfigProto:
    """Returns the configuration that keeps TFF from optimising a form's graphs.

    That takes seconds for large models, and whoever runs a graph does it for its own machine.
    Optimised graphs have lowered conditionals, which TFLite's converter refuses.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config
