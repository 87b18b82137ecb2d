"""Times rounds of this package and of other simulators; see docs/reference/benchmarks.md.

`workloads` and `side` are imported in the peers' environments too: they need NumPy only.
"""
