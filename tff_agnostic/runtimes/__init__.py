"""Where rounds are executed: one protocol, several runtimes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tff_agnostic.runtimes.tff import TffRuntime

__all__ = ["TffRuntime"]


def __getattr__(name: str) -> Any:
    # At the first use: Ray's workers import modules from here, and do without TFF.
    if name == "TffRuntime":
        from tff_agnostic.runtimes.tff import TffRuntime

        return TffRuntime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
