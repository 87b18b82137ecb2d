"""Plays an export on machines of their own: a server and nodes, each of which is one client.

Nothing here knows how bytes travel between them: that is a `server.Channel`. Only the processes
that play graphs import TensorFlow, and nothing imports TensorFlow Federated.
"""
