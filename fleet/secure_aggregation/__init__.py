"""Sums of clients' integers of which a server sees nothing else: Bonawitz et al. 2017.

Two state machines on bytes, `client.Client` and `server.Server`. They know no transport. They need
NumPy and `cryptography`, which comes with the extra `fleet`.
"""
