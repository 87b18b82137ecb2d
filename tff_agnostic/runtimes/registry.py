"""Every runtime by name."""

from typing import Callable

from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.runtimes.tff import TffRuntime

RUNTIMES: Registry[Callable[[RuntimeOptions], Runtime]] = Registry(
    "runtime", {"cohort": CohortRuntime, "tff": lambda _: TffRuntime()}
)
