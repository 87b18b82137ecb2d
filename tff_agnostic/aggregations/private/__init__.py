"""Differential privacy: sums of clipped answers with noise; see `private_sum`."""
