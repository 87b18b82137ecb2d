"""Every runtime by name."""

from __future__ import annotations

from typing import Callable

from tff_agnostic.errors import UserError
from tff_agnostic.later import require_tff
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.runtime import Runtime


def _ray(options: RuntimeOptions) -> Runtime:
    # Imported only where it is chosen: Ray need not be there.
    try:
        from tff_agnostic.runtimes.ray import RayRuntime
    except ImportError as e:
        raise UserError(
            f'the runtime ray needs Ray ({e}): pip install "ray>=2.40,<3", or this package with '
            "its extra, tff-agnostic[ray]"
        ) from e
    return RayRuntime(options)


def _tff(options: RuntimeOptions) -> Runtime:
    # Imported only where it is chosen: its module loads TFF.
    require_tff()
    from tff_agnostic.runtimes.tff import TffRuntime

    del options
    return TffRuntime()


RUNTIMES: Registry[Callable[[RuntimeOptions], Runtime]] = Registry(
    "runtime", {"cohort": CohortRuntime, "ray": _ray, "tff": _tff}
)
