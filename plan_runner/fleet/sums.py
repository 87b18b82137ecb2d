"""The secure sums of a plan, which each party makes from its own copy of the export."""

from __future__ import annotations

from plan_runner.errors import PlanError
from plan_runner.fleet.parts import About
from plan_runner.secure_aggregation.sum_plan import SummedTensor, SumPlan


def sum_plan(manifest: str, about: About, min_clients: int, checks_survivors: bool) -> SumPlan:
    """Returns what all parties of a plan's secure sums have to agree on.

    The modulus has room for as many clients as the plan admits, however many take part.

    Args:
        manifest: SHA-256 of the export's manifest, as hexadecimal digits.
        about: What the plan is, of the profile of secure sums.
        min_clients: The fewest clients whose sum may be opened.
        checks_survivors: See `SumPlan`.
    """
    if about.max_clients is None or about.max_clients < min_clients:
        raise PlanError(
            f"min_clients: expected at most {about.max_clients}, which the plan has room for, "
            f"found {min_clients}; export with a larger --max_clients_per_round"
        )
    tensors = tuple(SummedTensor(t.name, t.shape, t.bound, t.modulus) for t in about.secure)
    return SumPlan(
        bytes.fromhex(manifest), tensors, about.max_clients, min_clients, checks_survivors
    )
