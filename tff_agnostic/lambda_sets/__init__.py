"""Sets Lambda of mixtures of the domains, over which agnostic training takes the worst."""

from tff_agnostic.lambda_sets.ball import Ball
from tff_agnostic.lambda_sets.box import Box
from tff_agnostic.lambda_sets.hull import Hull
from tff_agnostic.lambda_sets.lambda_set import LambdaSet
from tff_agnostic.lambda_sets.options import LambdaSetOptions
from tff_agnostic.lambda_sets.simplex import Simplex, project_to_simplex

__all__ = [
    "Ball",
    "Box",
    "Hull",
    "LambdaSet",
    "LambdaSetOptions",
    "Simplex",
    "project_to_simplex",
]
