"""Differential privacy of runs: mechanisms, accountants, and statements of the guarantee."""
