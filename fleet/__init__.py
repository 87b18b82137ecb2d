"""A server and nodes that run an export on machines of their own; each node is one client.

How bytes travel between them is the business of a `members.Channel`. Only the processes that run
graphs import TensorFlow, and nothing imports TensorFlow Federated.
"""

# Version of the package, equal to tff_agnostic's.
__version__ = "1.0.0.dev0"
