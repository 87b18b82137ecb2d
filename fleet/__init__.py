"""A server and nodes that run an export on separate machines; each node is one client.

A `members.Channel` carries bytes between server and nodes. Only the processes that run graphs
import TensorFlow, and nothing imports TensorFlow Federated.
"""

# Version of the package, equal to tff_agnostic's.
__version__ = "1.0.0.dev0"
