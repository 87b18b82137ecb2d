"""Sums of clients' integers that reveal nothing else to the server: Bonawitz et al. 2017.

Two state machines on bytes, `client.Client` and `server.Server`. They know no transport. They need
NumPy and `cryptography`, which comes with the extra `fleet`.
"""
