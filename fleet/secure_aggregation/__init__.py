"""Secure aggregation: the server learns only the sum of clients' integers (Bonawitz et al. 2017).

Each client is a dealer, which splits its secrets into shares, and a holder of other clients'
shares. `client.Client` and `server.Server` are state machines that exchange bytes over any
transport. They need NumPy and `cryptography`, a dependency of the extra `fleet`.
"""
