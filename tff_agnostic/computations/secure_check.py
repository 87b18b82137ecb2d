"""Says whether anything but secure sums leaves the clients in a compiled round."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_federated as tff

from tff_agnostic.computations.compiling import without_graph_optimization
from tff_agnostic.errors import UserError

# The intrinsics that this package makes secure sums of. Any other name is no promise.
SECURE_SUMS = frozenset({"federated_secure_sum_bitwidth", "federated_secure_modular_sum"})


@dataclasses.dataclass(frozen=True)
class SecurityReport:
    """What a compiled round sends from clients to the server.

    Attributes:
        plain: Types of the values that travel in plain sums, by path; empty for a secure round.
        secure: Types of the values that travel in secure sums, by path.
    """

    plain: tuple[str, ...]
    secure: tuple[str, ...]

    @classmethod
    def of_exchanges(cls, reports: Mapping[str, "SecurityReport"]) -> "SecurityReport":
        """Returns one report of several exchanges, by their names; of a single one its own."""
        if len(reports) == 1:
            return next(iter(reports.values()))

        def named(name: str, values: tuple[str, ...]) -> list[str]:
            return [f"{name}: {value}" for value in values]

        return cls(
            plain=tuple(v for name, r in reports.items() for v in named(name, r.plain)),
            secure=tuple(v for name, r in reports.items() for v in named(name, r.secure)),
        )

    @property
    def is_secure(self) -> bool:
        """Whether nothing but secure sums reaches the server."""
        return not self.plain

    def summary(self) -> str:
        """Returns one line for people."""
        if self.is_secure:
            return f"all {len(self.secure)} values of a client reach the server in secure sums only"
        return f"{len(self.plain)} values of a client reach the server outside secure sums: " + (
            ", ".join(self.plain)
        )


def security_report(computation: tff.Computation) -> SecurityReport:
    """Compiles a round and reports how each value of a client reaches the server.

    The round is compiled to TFF's `MapReduceForm`, in which a client's work returns four parts: one
    for plain sums and one for each kind of secure sum. The form refuses computations in which
    clients and server communicate in any other way.

    Args:
        computation: (value at the server, client data) -> values at the server, such as a learning
            process's `next` or an evaluation.

    Raises:
        TypeError: If `computation` has another form.
        ValueError: If it communicates in a way that TFF's compiler cannot reduce to sums.
    """
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
        _in_two_results(computation), without_graph_optimization()
    )
    plain, *secure = form.work.type_signature.result
    return SecurityReport(
        plain=tuple(_leaves(plain, "")),
        secure=tuple(leaf for part in secure for leaf in _leaves(part, "")),
    )


def require_only_secure_sums(computation: tff.Computation) -> SecurityReport:
    """Returns the report of a computation that sends secure sums only.

    Raises:
        UserError: If anything else reaches the server; the message names it.
    """
    report = security_report(computation)
    if not report.is_secure:
        names = _names_in_plain_aggregations(computation)
        where = f"; in the source: {', '.join(names)}" if names else ""
        raise UserError(f"secure aggregation was asked for, but {report.summary()}{where}")
    return report


def require_no_plain_sums(computation: tff.Computation) -> None:
    """Checks the source of a computation that TFF's forms cannot hold, as of several exchanges.

    Raises:
        UserError: If values of clients reach the server in anything but a secure sum.
    """
    found: list[str] = []

    def visit(block: Any) -> tuple[Any, bool]:
        if _is_plain_aggregation(block):
            found.append(block.uri)
        return block, False

    tff.framework.transform_postorder(computation.to_building_block(), visit)
    if found:
        raise UserError(
            f"secure aggregation was asked for, but the round has {', '.join(sorted(set(found)))}"
        )


def _names_in_plain_aggregations(computation: tff.Computation) -> list[str]:
    # A value that is summed alone has lost its name in the compiled form. Where the source selects
    # it from a client's result, as in `tff.federated_sum(result["loss"])`, the name is still there.
    names: list[str] = []

    def visit(block: Any) -> tuple[Any, bool]:
        if isinstance(block, tff.framework.Call) and _is_plain_aggregation(block.function):
            names.extend(_selected_name(block.argument))
        return block, False

    tff.framework.transform_postorder(computation.to_building_block(), visit)
    return names


def _is_plain_aggregation(block: Any) -> bool:
    # The intrinsic itself, and not its call: a name may stand for it there.
    return (
        isinstance(block, tff.framework.Intrinsic)
        and block.uri not in SECURE_SUMS
        and isinstance(block.type_signature, tff.FunctionType)
        and _is_placed(block.type_signature.parameter, tff.CLIENTS)
        and _is_placed(block.type_signature.result, tff.SERVER)
    )


def _is_placed(value_type: tff.Type, placement: Any) -> bool:
    # Some take several arguments, such as a weighted mean, or an aggregation by functions.
    if isinstance(value_type, tff.StructType):
        elements = tff.structure.iter_elements(value_type)
        return any(_is_placed(element, placement) for _, element in elements)
    return isinstance(value_type, tff.FederatedType) and value_type.placement is placement


def _selected_name(block: Any) -> Iterator[str]:
    # TFF writes the selection from a federated structure as a map of a function that selects.
    if not isinstance(block, tff.framework.Call) or not isinstance(
        block.argument, tff.framework.Struct
    ):
        return
    mapped = block.argument[0]
    if isinstance(mapped, tff.framework.Lambda) and isinstance(
        mapped.result, tff.framework.Selection
    ):
        selection = mapped.result
        elements = tff.structure.to_elements(selection.source.type_signature)
        name = selection.name or elements[selection.index][0]
        if name is not None:
            yield name


def _in_two_results(computation: tff.Computation) -> tff.Computation:
    # The form is made of computations that return an updated state and an output.
    result = computation.type_signature.result
    if isinstance(result, tff.StructType):
        return computation
    server_type, client_type = computation.type_signature.parameter

    @tff.federated_computation(server_type, client_type)
    def with_state(server_value: Any, client_data: Any) -> Any:
        return server_value, computation(server_value, client_data)

    return with_state


def _leaves(value_type: tff.Type, path: str) -> Iterator[str]:
    if isinstance(value_type, tff.StructType):
        for index, (name, element) in enumerate(tff.structure.iter_elements(value_type)):
            # The compiler wraps each part in unnamed tuples, which say nothing to a reader.
            step = name or (str(index) if len(value_type) > 1 else "")
            yield from _leaves(element, f"{path}.{step}".strip(".") if step else path)
    else:
        yield f"{path} ({value_type})" if path else str(value_type)
