"""Which operations a plan's graphs may hold.

A plan is code that somebody else wrote. The lists name what may run rather than what may not: an
operation that TensorFlow adds one day is refused until somebody has looked at it.
"""

# Stateful ones, by the reason why they are harmless: state that they have lives in the session.
STATEFUL = {
    "control flow and calls, whose bodies are checked as well": frozenset(
        ("Assert", "Case", "DeviceIndex", "If", "StatefulPartitionedCall", "While")
    ),
    "checks of numbers": frozenset(("CheckNumerics", "CheckNumericsV2")),
    "uninitialised memory of the graph's own": frozenset(("Empty", "DeepCopy")),
    "random numbers": frozenset(
        (
            "Multinomial",
            "NonDeterministicInts",
            "ParameterizedTruncatedNormal",
            "RandomCrop",
            "RandomGamma",
            "RandomPoisson",
            "RandomPoissonV2",
            "RandomShuffle",
            "RandomStandardNormal",
            "RandomUniform",
            "RandomUniformInt",
            "RngReadAndSkip",
            "RngSkip",
            "StatefulRandomBinomial",
            "StatefulStandardNormal",
            "StatefulStandardNormalV2",
            "StatefulTruncatedNormal",
            "StatefulUniform",
            "StatefulUniformFullInt",
            "StatefulUniformInt",
            "StatelessRandomGetAlg",
            "TruncatedNormal",
        )
    ),
    "variables": frozenset(
        (
            "AssignAddVariableOp",
            "AssignSubVariableOp",
            "AssignVariableOp",
            "DestroyResourceOp",
            "ReadVariableOp",
            "ResourceGather",
            "ResourceGatherNd",
            "ResourceStridedSliceAssign",
            "TemporaryVariable",
            "VarHandleOp",
            "VarIsInitializedOp",
            "Variable",
            "VariableShape",
            "VariableV2",
        )
    ),
    "datasets over tensors, and what reads them": frozenset(
        (
            "AnonymousIteratorV2",
            "AnonymousIteratorV3",
            "AnonymousMemoryCache",
            "AnonymousRandomSeedGenerator",
            "AnonymousSeedGenerator",
            "DatasetToSingleElement",
            "DeleteIterator",
            "DeleteMemoryCache",
            "DeleteRandomSeedGenerator",
            "DeleteSeedGenerator",
            "DummyIterationCounter",
            "DummyMemoryCache",
            "DummySeedGenerator",
            "GroupByReducerDataset",
            "IteratorGetNext",
            "IteratorGetNextAsOptional",
            "IteratorGetNextSync",
            "IteratorV2",
            "MakeIterator",
            "RandomDataset",
            "RandomDatasetV2",
            "RangeDataset",
            "ReduceDataset",
            "ShuffleAndRepeatDatasetV2",
            "ShuffleDatasetV2",
            "ShuffleDatasetV3",
            "SparseTensorSliceDataset",
            "TensorDataset",
            "TensorSliceDataset",
        )
    ),
    "tables that are filled from tensors": frozenset(
        (
            "AnonymousHashTable",
            "AnonymousMutableDenseHashTable",
            "AnonymousMutableHashTable",
            "HashTableV2",
            "InitializeTableV2",
            "LookupTableExportV2",
            "LookupTableFindV2",
            "LookupTableImportV2",
            "LookupTableInsertV2",
            "LookupTableRemoveV2",
            "LookupTableSizeV2",
            "MutableDenseHashTableV2",
            "MutableHashTableV2",
        )
    ),
    "arrays and stacks of loops": frozenset(
        (
            "StackCloseV2",
            "StackPopV2",
            "StackPushV2",
            "StackV2",
            "TensorArrayCloseV3",
            "TensorArrayConcatV3",
            "TensorArrayGatherV3",
            "TensorArrayGradV3",
            "TensorArrayReadV3",
            "TensorArrayScatterV3",
            "TensorArraySizeV3",
            "TensorArraySplitV3",
            "TensorArrayV3",
            "TensorArrayWriteV3",
        )
    ),
    "candidates drawn from numbers": frozenset(
        (
            "AllCandidateSampler",
            "LearnedUnigramCandidateSampler",
            "LogUniformCandidateSampler",
            "UniformCandidateSampler",
        )
    ),
    "recurrent layers, in the branch that a device with cuDNN takes": frozenset(
        (
            "CudnnRNN",
            "CudnnRNNBackprop",
            "CudnnRNNBackpropV2",
            "CudnnRNNBackpropV3",
            "CudnnRNNV2",
            "CudnnRNNV3",
        )
    ),
}

# Families that apply gradients to variables, or scatter into them.
STATEFUL_PREFIXES = ("ResourceApply", "ResourceScatter", "ResourceSparseApply")

# Without state. A file or a host can only be named by a string: an operation that has neither an
# input nor an attribute that is always a string may run; of the others, these.
STRING_INPUTS = frozenset(
    (
        "DecodeAndCropJpeg",
        "DecodeBase64",
        "DecodeBmp",
        "DecodeCSV",
        "DecodeGif",
        "DecodeImage",
        "DecodeJpeg",
        "DecodePaddedRaw",
        "DecodePng",
        "DecodeRaw",
        "EncodeBase64",
        "Fingerprint",
        "ParseExample",
        "ParseExampleV2",
        "ParseSequenceExample",
        "ParseSequenceExampleV2",
        "ParseSingleExample",
        "ParseSingleSequenceExample",
        "ReduceJoin",
        "RegexFullMatch",
        "RegexReplace",
        "ShardedFilename",
        "StaticRegexFullMatch",
        "StaticRegexReplace",
        "StringJoin",
        "StringLength",
        "StringLower",
        "StringNGrams",
        "StringSplit",
        "StringSplitV2",
        "StringStrip",
        "StringToHashBucket",
        "StringToHashBucketFast",
        "StringToHashBucketStrong",
        "StringToNumber",
        "StringUpper",
        "Substr",
        "UnicodeDecode",
        "UnicodeDecodeWithOffsets",
        "UnicodeTranscode",
        "UnsortedSegmentJoin",
    )
)

STRING_ATTRIBUTES = frozenset(
    (
        "align",
        "allowed_devices",
        "cardinality_options",
        "config",
        "config_proto",
        "container",
        "context_dense_keys",
        "context_sparse_keys",
        "data_format",
        "dct_method",
        "debug_name",
        "dense_keys",
        "density_unit",
        "deterministic",
        "direction",
        "dst_format",
        "encoding",
        "equation",
        "errors",
        "executor_type",
        "feature_list_dense_keys",
        "feature_list_dense_missing_assumed_empty",
        "feature_list_sparse_keys",
        "field_delim",
        "fill",
        "fill_mode",
        "frame_name",
        "input_encoding",
        "input_mode",
        "interpolation",
        "kernel_type",
        "left_pad",
        "message",
        "metadata",
        "method",
        "mode",
        "na_value",
        "noise",
        "output_encoding",
        "padding",
        "pattern",
        "placeholder",
        "ragged_keys",
        "rewrite",
        "right_pad",
        "rnn_mode",
        "round_mode",
        "row_partition_types",
        "separator",
        "serialized_options",
        "set_operation",
        "shared_name",
        "sparse_keys",
        "src_format",
        "stack_name",
        "template",
        "tensor_array_name",
        "unit",
        "var_name",
    )
)

# Attributes that choose among a few values, of which an operation may have no other: those that
# TensorFlow got after 2.14. Of all that 2.21 has and 2.14 has not, no other is on an operation that
# may run, and names anything.
STRING_VALUES = {"bad_indices_policy": frozenset((b"", b"DEFAULT", b"ERROR", b"IGNORE"))}

# Their first input is a path: a placeholder that the plan names as one.
READS_FILE = frozenset(("Restore", "RestoreSlice", "RestoreV2"))
WRITES_FILE = frozenset(("Save", "SaveSlices"))

PLACEHOLDERS = frozenset(("Placeholder", "PlaceholderV2", "PlaceholderWithDefault"))

# The one operation of the platform's own: a client's examples.
EXTERNAL_DATASET = "ExternalDataset"


def is_stateful_allowed(op: str) -> bool:
    """Returns whether a stateful operation may run."""
    return op.startswith(STATEFUL_PREFIXES) or any(op in ops for ops in STATEFUL.values())
