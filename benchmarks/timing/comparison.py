"""Measures the times of one workload on this package and on its peers."""

from collections.abc import Sequence

from benchmarks.timing.products import round_products, total_flops
from benchmarks.timing.results import WorkloadResult
from benchmarks.timing.schedule import Contestant, Protocol, measure
from benchmarks.timing.sides import SideSpec, products_side
from benchmarks.timing.workloads import Workload


def compare(workload: Workload, specs: Sequence[SideSpec], protocol: Protocol) -> WorkloadResult:
    """Measures sides on a workload, and separately the workload's matrix products.

    Args:
        workload: Workload of all sides.
        specs: Sides to measure; the first side is the baseline.
        protocol: Numbers of rounds and repetitions.
    """
    *sides, products = measure(
        [_contestant(spec, workload) for spec in [*specs, products_side()]], protocol
    )
    return WorkloadResult(
        name=workload.name,
        description=workload.describe(),
        sides=sides,
        products=products,
        flops=total_flops(round_products(workload)),
    )


def _contestant(spec: SideSpec, workload: Workload) -> Contestant:
    return Contestant(spec.title, workload.describe(), lambda: spec.command(workload))
