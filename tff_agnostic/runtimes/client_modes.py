"""How the clients of a cohort run: in step, or one after another."""

from collections.abc import Sequence
from typing import Callable, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.client_work import CompiledWork
from tff_agnostic.runtimes.shards import Shard, streamed_shards, vectorised_shards
from tff_agnostic.runtimes.submissions import ShardFunction

# Up to here a client's step costs less than starting its operations does (measured on CPU).
_LARGEST_VECTORISED_MODEL_BYTES = 400_000
_GROUP_BYTES = 64 * 2**20
_MAX_GROUP = 512

Plan = tuple[ShardFunction, list[Shard]]


def _stream(
    compiled: CompiledWork, cohort: Sequence[Examples], max_clients_in_step: Optional[int]
) -> Plan:
    del max_clients_in_step
    return compiled.streamed, streamed_shards(len(cohort))


def _vectorise(
    compiled: CompiledWork, cohort: Sequence[Examples], max_clients_in_step: Optional[int]
) -> Plan:
    if compiled.vectorisation_error is not None:
        raise UserError(
            "--client_mode=vectorised: TensorFlow cannot vectorise this model, it can be streamed "
            f"({compiled.vectorisation_error})"
        )
    sizes = [len(examples["domain_id"]) for examples in cohort]
    most = max_clients_in_step or _largest_group(compiled, max(sizes, default=0))
    return compiled.vectorised, vectorised_shards(sizes, most)


def _choose(
    compiled: CompiledWork, cohort: Sequence[Examples], max_clients_in_step: Optional[int]
) -> Plan:
    work = compiled.work
    looks_up = work.bytes_per_example is not None
    is_small = looks_up or work.broadcast_bytes <= _LARGEST_VECTORISED_MODEL_BYTES
    in_step = is_small and compiled.vectorisation_error is None
    return (_vectorise if in_step else _stream)(compiled, cohort, max_clients_in_step)


# (work, cohort, most clients of a group) -> how to run a shard, and the shards; a function of its
# arguments alone, so that no number of devices or workers changes the sums.
CLIENT_MODES: Registry[Callable[[CompiledWork, Sequence[Examples], Optional[int]], Plan]] = (
    Registry("client mode", {"auto": _choose, "vectorised": _vectorise, "streamed": _stream})
)


def _largest_group(compiled: CompiledWork, num_rows: int) -> int:
    work, output = compiled.work, compiled.output_bytes()
    looked_up = work.bytes_per_example
    # Nobody has a copy of what is only looked up in.
    model = work.broadcast_bytes if looked_up is None else num_rows * looked_up
    # Weights with their steps, outputs with their encoding, a batch with its gradients: roughly.
    bytes_per_client = 3 * model + 2 * output + 4 * num_rows * work.example_bytes
    return max(1, min(_MAX_GROUP, _GROUP_BYTES // bytes_per_client))
