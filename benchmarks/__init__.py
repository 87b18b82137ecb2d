"""Measurements of this package and of other simulators; they only run from a checkout.

This file makes the folder a package. Otherwise an installed package named `benchmarks` would be
imported instead.
"""
