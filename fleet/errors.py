"""The errors that end in one line: a plan's or its runner's, and a secure sum's."""

from __future__ import annotations

from fleet.secure_aggregation.errors import SumError
from plan_runner.errors import PlanError

ERRORS = (PlanError, SumError)
