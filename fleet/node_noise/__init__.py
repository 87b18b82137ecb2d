"""Noise that clients add to their values before secure aggregation, and its accounts.

Nothing here imports TensorFlow or a transport.
"""
