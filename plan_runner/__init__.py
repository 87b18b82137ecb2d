"""Runs federated plans that were exported for the Federated Compute Platform, in plain TensorFlow.

It simulates the server and the clients of an export's rounds. It imports only the `tensorflow`
package and its dependencies: this folder can be copied and used alone. `secure_aggregation`, which
the simulation does without, needs `cryptography`.
"""

# Of the package that is installed; the same as tff_agnostic's.
__version__ = "1.0.0.dev0"
