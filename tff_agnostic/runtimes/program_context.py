"""A context for `tff.program` and `tff.learning.programs`, in a worker of ours."""

from typing import Any, NamedTuple, Optional

import tensorflow_federated as tff

from tff_agnostic.runtimes.tff import create_async_context
from tff_agnostic.runtimes.worker import TffWorker


class ProgramContext(tff.program.NativeFederatedContext):
    """`tff.program.NativeFederatedContext` for clients whose data are structures of arrays.

    TFF's own looks for references in its arguments by their types and takes the list of clients for
    one client's structure: clients beyond the number of its columns are lost, the others fail. This
    one looks for them by value, and hands lists of clients on as they are.

    Args:
        worker: Where computations run; it has to outlive the context.
    """

    def __init__(self, worker: TffWorker) -> None:
        super().__init__(_ContextOfCalls(create_async_context(worker)))

    def invoke(self, comp: tff.Computation, arg: Optional[Any]) -> Any:
        """Invokes `comp`; see `tff.program.FederatedContext.invoke`."""
        return super().invoke(_Call(comp, arg), None)


class _Call(NamedTuple):
    """A computation with its argument, in the shape of a computation without one."""

    computation: tff.Computation
    argument: Optional[Any]

    @property
    def type_signature(self) -> tff.FunctionType:
        return tff.FunctionType(None, self.computation.type_signature.result)


class _ContextOfCalls:
    """Invokes the computation of a `_Call` with its argument."""

    def __init__(self, context: tff.framework.AsyncExecutionContext) -> None:
        self._context = context

    async def invoke(self, call: _Call, _: None) -> Any:
        return await self._context.invoke(call.computation, await _materialize(call.argument))


async def _materialize(value: Any) -> Any:
    if isinstance(value, tff.structure.Struct):
        return tff.structure.Struct(
            [(name, await _materialize(v)) for name, v in tff.structure.iter_elements(value)]
        )
    return await tff.program.materialize_value(value)
