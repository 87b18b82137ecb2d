"""Runs federated plans that were exported for the Federated Compute Platform, in plain TensorFlow.

The package simulates the server and the clients of an export's rounds. It imports only `tensorflow`
and its dependencies, so this folder can be copied and used alone.
"""

# Version of the package, equal to tff_agnostic's.
__version__ = "1.0.0.dev0"
