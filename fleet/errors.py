"""Exceptions with one-line messages, of plans, their runner, and secure sums."""

from __future__ import annotations

from fleet.secure_aggregation.errors import SumError
from plan_runner.errors import PlanError

ERRORS = (PlanError, SumError)
