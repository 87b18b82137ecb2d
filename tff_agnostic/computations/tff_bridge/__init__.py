"""Conversions between this package and TFF's models, aggregators and clients.

These modules are imported on first use: `models.from_tff`, `models.to_tff`, `aggregations.from_tff`
and `data.tff_clients` import them when called.
"""
