"""Sums of client outputs: plain, secure, with differential privacy, and by TFF's aggregators."""

from __future__ import annotations

from tff_agnostic.aggregations.registry import from_tff

__all__ = ["from_tff"]
