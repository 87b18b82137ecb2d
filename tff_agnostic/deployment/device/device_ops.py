"""Which ops devices of a platform have, and why a graph needs others."""

from collections.abc import Iterable, Mapping

from tff_agnostic.errors import UserError

# TensorFlow's ops in On-Device Personalization's build of TensorFlow Lite, beside TFLite's own:
# privacysandbox/odp-federatedcompute, python/taskbuilder/support_ops.csv at commit 015930f.
ODP_FLEX_OPS = frozenset(
    (
        "AnonymousIteratorV3",
        "AsString",
        "BatchDatasetV2",
        "BroadcastGradientArgs",
        "ConcatOffset",
        "ExternalDataset",
        "IteratorGetNextAsOptional",
        "L2Loss",
        "MakeIterator",
        "MapDataset",
        "OptionalGetValue",
        "OptionalHasValue",
        "ParseExampleV2",
        "ReduceDataset",
        "Relu6",
        "ReluGrad",
        "RestoreV2",
        "SaveSlices",
        "ShapeN",
        "Split",
        "StridedSliceGrad",
        "StringToHashBucketFast",
        "TakeDataset",
        "_TensorToHashBucketFast",
    )
)


_DROPOUT = "random numbers of a layer, as of dropout: a model without such layers has none"
_GRADIENT = "the gradient of a layer that has none in TensorFlow Lite"
_FLOAT64 = "--profile=secure quantises in float64, for which TensorFlow Lite has no ops"
_CLIPPED = "--privacy clips in float64, for which TensorFlow Lite has no ops"
_UNKNOWN = "the model or the algorithm needs it"

# What secure sums are quantised with; TFLite has these itself, but for smaller numbers only.
_OF_FLOAT64 = frozenset(
    ("Abs", "DivNoNan", "Floor", "Max", "Maximum", "Minimum", "Mul", "RealDiv", "Relu", "Round")
)
# And what values are clipped with beside these.
_OF_CLIPPING = _OF_FLOAT64 | {
    *("AddN", "AddV2", "Greater", "Less", "SelectV2", "Sqrt", "Square", "Sum")
}

# By the beginning of an op's name.
_REASONS = {
    "Stateless": _DROPOUT,
    "Conv": _GRADIENT,
    "DepthwiseConv": _GRADIENT,
    "MaxPoolGrad": _GRADIENT,
    "AvgPoolGrad": _GRADIENT,
}


def beyond_odp(
    flex_ops: Iterable[str], is_secure: bool, is_private: bool = False
) -> dict[str, str]:
    """Returns the ops that On-Device Personalization's devices lack, and why each is there.

    Args:
        flex_ops: TensorFlow's ops of a graph for devices.
        is_secure: Whether values are quantised for secure sums.
        is_private: Whether values are clipped to a norm.
    """
    of_sums = dict.fromkeys(_OF_CLIPPING, _CLIPPED) if is_private else {}
    of_sums.update(dict.fromkeys(_OF_FLOAT64, _FLOAT64) if is_secure else {})
    beyond = sorted(set(flex_ops) - ODP_FLEX_OPS)
    return {op: of_sums.get(op) or _reason_of_layer(op) for op in beyond}


def check_within_odp(beyond: Mapping[str, str]) -> None:
    """Checks that On-Device Personalization's devices have all ops.

    Raises:
        UserError: If `beyond_odp` found others.
    """
    if beyond:
        op, reason = next(iter(beyond.items()))
        raise UserError(
            "--require_odp_ops: expected no op that On-Device Personalization's devices lack, "
            f"found {len(beyond)}: {', '.join(beyond)} ({op}: {reason})"
        )


def _reason_of_layer(op: str) -> str:
    return next((reason for start, reason in _REASONS.items() if op.startswith(start)), _UNKNOWN)
