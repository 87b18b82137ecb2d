"""Exceptions with one-line messages, which a fleet's commands print."""

from __future__ import annotations

from fleet.secure_aggregation.errors import SumError
from plan_runner.errors import PlanError

ERRORS = (PlanError, SumError)
