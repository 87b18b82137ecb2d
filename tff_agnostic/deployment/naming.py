"""Names of tensors in checkpoints and graphs, from the paths of TFF types."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.errors import UserError

# Prefixes of the names in checkpoints, those of the platform's own tools.
SERVER = "server"
CLIENT = "client"
UPDATE = "update"
INTERMEDIATE_UPDATE = "intermediate_update"
AGGREGATED_UPDATE = "aggregated_update"
INTERMEDIATE_STATE = "intermediate_state"
METRICS = "metrics"

# What TensorFlow takes in the name of a node.
_NOT_IN_NODES = re.compile(r"[^A-Za-z0-9_.\\/>-]")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One tensor of a structure.

    Attributes:
        path: Field names and positions from the top of the structure, "/" between them.
        dtype: Its dtype.
        shape: Its shape.
    """

    path: str
    dtype: tf.DType
    shape: tf.TensorShape

    def named(self, prefix: str) -> tf.TensorSpec:
        """Returns the spec of the tensor under its name in a checkpoint."""
        name = f"{prefix}/{node_name(self.path)}" if self.path else prefix
        return tf.TensorSpec(self.shape, self.dtype, name)


def leaves(structure: tff.Type) -> tuple[Leaf, ...]:
    """Returns the tensors of an unplaced type, in TFF's order.

    Raises:
        UserError: If two of them would have one name in a graph.
    """
    found = tuple(_leaves(structure, ()))
    paths: dict[str, str] = {}
    for leaf in found:
        other = paths.setdefault(node_name(leaf.path), leaf.path)
        if other != leaf.path:
            raise UserError(
                "export: expected names that still differ where nodes of a graph have _ for a "
                f"space and the like, found {other!r} and {leaf.path!r}"
            )
    return found


def node_name(path: str) -> str:
    """Returns a path as the name of a node: a metric of a user may have a space in its name."""
    return _NOT_IN_NODES.sub("_", path)


def named(structure: Iterable[Leaf], prefix: str) -> list[tf.TensorSpec]:
    """Returns the specs of tensors under their names in a checkpoint."""
    return [leaf.named(prefix) for leaf in structure]


def only_element(structure: tff.Type) -> tff.Type:
    """Returns what a structure of one element holds; others as they are.

    TFF's compiler makes lists of what travels together; a round of ours sends one thing each way.
    """
    elements = [element for _, element in tff.structure.iter_elements(structure)]
    return elements[0] if len(elements) == 1 else structure


def side_channel_names(intrinsic_uri: str, structure: Sequence[Leaf]) -> list[str]:
    """Returns the names of securely summed tensors in the graphs, without output index."""
    prefix = f"sidechannel_secagg_{intrinsic_uri}_{UPDATE}"
    return [spec.name for spec in named(structure, prefix)]


def _leaves(structure: tff.Type, path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(structure, tff.StructType):
        for index, (name, element) in enumerate(tff.structure.iter_elements(structure)):
            yield from _leaves(element, (*path, name or str(index)))
    elif isinstance(structure, tff.TensorType):
        yield Leaf("/".join(path), tf.as_dtype(structure.dtype), tf.TensorShape(structure.shape))
    else:
        raise TypeError(f"expected a structure of tensors, found {structure} at {'/'.join(path)}")
