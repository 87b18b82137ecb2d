"""Measurements of this package and of other simulators, from a checkout; not installed.

Python packages that bring a `benchmarks` of their own hide a folder of that name without this file.
"""
