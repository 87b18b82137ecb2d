"""Mutated exports, how they are played, and who watches; see `tools/fuzz_plans.py`."""
