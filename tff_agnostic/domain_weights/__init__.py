"""Sets Lambda of domain mixtures, and the ascent of lambda in agnostic training."""

from __future__ import annotations

from tff_agnostic.domain_weights.ball import Ball
from tff_agnostic.domain_weights.sets import Box, Hull, LambdaSet, Simplex, project_to_simplex

__all__ = [
    "Ball",
    "Box",
    "Hull",
    "LambdaSet",
    "Simplex",
    "project_to_simplex",
]
