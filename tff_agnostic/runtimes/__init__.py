"""Where rounds are executed: one protocol, several runtimes."""

from tff_agnostic.runtimes.tff import TffRuntime

__all__ = ["TffRuntime"]
