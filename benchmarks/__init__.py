"""Measurements of this package and of other simulators, from a checkout; not installed.

Without this file, Python packages with a folder `benchmarks` of their own would hide this folder.
"""
