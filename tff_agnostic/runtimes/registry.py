"""Registry of the runtimes."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import require_tff
from tff_agnostic.base.options import Options
from tff_agnostic.base.registry import Registry
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions, RayOptions
from tff_agnostic.runtimes.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class RuntimeSpec:
    """Registry entry of a runtime.

    Attributes:
        options: A frozen dataclass of options, which become flags.
        build: Called with the options; returns the runtime.
    """

    options: type[Options]
    build: Callable[[Any], Runtime]


def _ray(options: RayOptions) -> Runtime:
    # Import on demand, as Ray is an optional dependency.
    try:
        from tff_agnostic.runtimes.ray import RayRuntime
    except ImportError as e:
        raise UserError(
            f'the runtime ray needs Ray ({e}): pip install "ray>=2.40,<3", or this package with '
            "its extra, tff-agnostic[ray]"
        ) from e
    return RayRuntime(options)


def _tff(options: Options) -> Runtime:
    # Import on demand, as the module loads TFF.
    require_tff()
    from tff_agnostic.runtimes.tff import TffRuntime

    del options
    return TffRuntime()


RUNTIMES: Registry[RuntimeSpec] = Registry(
    "runtime",
    {
        "cohort": RuntimeSpec(CohortOptions, CohortRuntime),
        "ray": RuntimeSpec(RayOptions, _ray),
        "tff": RuntimeSpec(Options, _tff),
    },
)
