"""Examples of a client store under the names that plans have for labels and domains."""

from collections.abc import Mapping, Sequence

import tensorflow as tf
from google.protobuf import message

from plan_runner.client_store import DOMAIN, LABEL
from plan_runner.errors import PlanError
from plan_runner.export import TensorType

# Of a plan: the label, and the domain's number.
_Y = "y"
_DOMAIN_ID = "domain_id"


def as_plans_read(
    record: bytes, features: Mapping[str, TensorType], domains: Sequence[str], where: str
) -> bytes:
    """Returns an example of a store with what a plan reads of its label and domain.

    What the store has under the plan's own names stays as it is, and so does all that is no
    example, which `client.check_example` refuses.

    Args:
        features: The features that the plan reads.
        domains: The names of the plan's domains, in the order of their ids.
        where: Which example, for messages.
    """
    try:
        example = tf.train.Example.FromString(record)
    except message.DecodeError:
        return record
    found = example.features.feature
    lacks = {name for name in features if name not in found}
    if _Y in lacks and LABEL in found:
        found[_Y].CopyFrom(found[LABEL])
    if _DOMAIN_ID in lacks and DOMAIN in found:
        names = [name.decode(errors="replace") for name in found[DOMAIN].bytes_list.value]
        unknown = [name for name in names if name not in domains]
        if unknown:
            raise PlanError(
                f"{where}: expected one of the plan's domains, {', '.join(domains) or 'none'}, "
                f"found {unknown[0]!r:.60}"
            )
        found[_DOMAIN_ID].int64_list.value.extend(map(domains.index, names))
    return example.SerializeToString(deterministic=True)
