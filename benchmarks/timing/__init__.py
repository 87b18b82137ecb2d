"""Times rounds of this package and of other simulators; see docs/reference/benchmarks.md.

`workloads` and `side` are also imported in the peers' environments, and only need NumPy.
"""
