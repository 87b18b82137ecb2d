"""Names of graphs that depend on the graph alone, and graphs that compute what they did."""

import tensorflow as tf

from tff_agnostic.deployment.graphs import with_renamed_functions, with_renamed_nodes


def _graph(process_has_a_past: bool):
    """A graph with functions in functions, in a process that may have made others before."""
    if process_has_a_past:
        tf.function(lambda x: tf.cond(x > 0.0, lambda: x - 1.0, lambda: x))(tf.constant(1.0))
    with tf.Graph().as_default() as graph:

        @tf.function
        def doubled(x):
            tf.debugging.assert_greater(x, 0.0)
            return 2.0 * x

        @tf.function
        def unused(x):
            return x

        @tf.function
        def outer(x, steps):
            total = tf.while_loop(
                lambda i, _: i < steps, lambda i, v: (i + 1, v + doubled(v)), [0, doubled(x)]
            )[1]
            return tf.cond(total > 100.0, lambda: doubled(total), lambda: total)

        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        y = tf.identity(outer(x, 2), "y")
        unused(y)
    return graph.as_graph_def(), y.name


def _compute(graph_def, copies):
    """The result of copies of a graph, each of which takes the result of the one before."""
    with tf.Graph().as_default() as graph:
        value = tf.constant(3.0)
        for name, (copy, fed, fetched) in copies.items():
            renamed = with_renamed_functions(copy, f"{name}_function")
            [value] = tf.graph_util.import_graph_def(
                renamed, input_map={fed: value}, return_elements=[fetched], name=name
            )
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(value), [
                f.signature.name for f in graph.as_graph_def().library.function
            ]


def _renamed(graph_def, fetched):
    renamed, new_names = with_renamed_nodes(graph_def)
    return renamed, f"{new_names['x']}:0", f"{new_names[fetched.partition(':')[0]]}:0"


def test_a_graph_used_twice_computes_what_it_did_twice():
    graph_def, fetched = _graph(False)
    once, names = _compute(graph_def, {"once": _renamed(graph_def, fetched)})
    # 3 doubled, three times that, twice; 54 is below 100.
    assert once == 3.0 * 2 * 3 * 3
    assert names and all(name.startswith("once_function_") for name in names)
    copies = {"first": _renamed(graph_def, fetched), "second": _renamed(graph_def, fetched)}
    twice, names = _compute(graph_def, copies)
    # 972, doubled as it is above 100.
    assert twice == once * 2 * 3 * 3 * 2
    assert {name.partition("_")[0] for name in names} == {"first", "second"}


def test_what_came_before_in_the_process_is_in_no_name():
    first, second = (
        with_renamed_functions(_renamed(*_graph(past))[0], "f").SerializeToString(
            deterministic=True
        )
        for past in (False, True)
    )
    assert first == second


def test_only_functions_that_are_called_are_kept():
    graph_def, _ = _graph(False)
    called = with_renamed_functions(graph_def, "f")
    alone = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    alone.node.extend(node for node in graph_def.node if node.op == "Placeholder")
    assert len(called.library.function) > 0
    assert len(with_renamed_functions(alone, "f").library.function) == 0
