"""Sums to which clients add noise of their own before secure aggregation: noise and accounts.

Nothing here imports TensorFlow or a transport.
"""
