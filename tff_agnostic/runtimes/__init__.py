"""Where rounds are executed: one protocol, several runtimes."""

from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.tff import TffRuntime

__all__ = ["CohortRuntime", "RuntimeOptions", "TffRuntime"]
