"""Measures round times of this package and of other simulators; see docs/reference/benchmarks.md.

A side is one simulator with one algorithm, which runs in a separate process. A peer is another
simulator. `workloads` and `side` are also imported in the peers' environments, and need only NumPy.
"""
