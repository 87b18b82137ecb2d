"""Every runtime by name."""

from typing import Callable

from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.runtimes.tff import TffRuntime

RUNTIMES: Registry[Callable[[], Runtime]] = Registry("runtime", {"tff": TffRuntime})
