"""Measurements of this package and other simulators, which run from a checkout only.

This file makes the folder a package. Otherwise an installed package named `benchmarks` would be
imported instead.
"""
