"""Federated training of an exported plan on separate machines: a server, and a node per client.

A `members.Channel` carries bytes between server and nodes. Only the processes that execute graphs
import TensorFlow. No process imports TensorFlow Federated.
"""

# Version of the package, equal to tff_agnostic's.
__version__ = "1.0.0.dev0"
