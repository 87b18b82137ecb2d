"""Mutated exports: how they are created, run and monitored; see `tools/fuzz_plans.py`."""
