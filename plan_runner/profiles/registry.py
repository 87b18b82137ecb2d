"""The kinds of plans that can be run; a new one is an entry here."""

from typing import Callable

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.profiles.daf import DafProfile
from plan_runner.profiles.profile import Profile
from plan_runner.profiles.secure import SecureProfile

PROFILES: dict[str, Callable[[plan_pb2.Plan], Profile]] = {
    "daf": DafProfile,
    "secure": SecureProfile,
}


def load_profile(name: str, plan: plan_pb2.Plan) -> Profile:
    """Returns what plays a plan of the profile of that name.

    Raises:
        PlanError: If there is no such profile, or the plan is not one of it.
    """
    if name not in PROFILES:
        known = ", ".join(sorted(PROFILES))
        raise PlanError(f"manifest.json: profile: expected one of {known}, found {name!r}")
    return PROFILES[name](plan)
