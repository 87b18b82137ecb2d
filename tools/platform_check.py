"""Checks the messages of an export against the platform's own definitions.

The definitions are .proto files that are not part of this project; the user downloads them. Parsing
a message must find no unknown fields, and serialising it again must give the same bytes.
`tools/check_against_platform` calls this script.
"""

import argparse
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import tensorflow as tf
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message,
    message_factory,
    unknown_fields,
)

from plan_runner.errors import PlanError, reason
from plan_runner.export import CLIENT_ONLY_PLAN, PLAN, open_export

_PLANS = "google.internal.federated.plan"
_TASKS = "google.ondevicepersonalization.federatedcompute.proto"
_TASK = "task.json"
_MESSAGES = {
    PLAN: f"{_PLANS}.Plan",
    CLIENT_ONLY_PLAN: f"{_PLANS}.ClientOnlyPlan",
    _TASK: f"{_TASKS}.CreateTaskRequest",
}
# Fields of type bytes that contain a serialised TensorFlow message, mapped to the message's type.
_GRAPHS = {f"{_PLANS}.ClientOnlyPlan.graph": "tensorflow.GraphDef"}
# Definitions of the TensorFlow messages that an export may pack into an `Any` message.
_PACKED = ("tensorflow/core/framework/graph.proto", "tensorflow/core/protobuf/config.proto")
# Field that On-Device Personalization adds to the platform's messages: message and field number.
_ADDED = (f"{_PLANS}.TensorflowSpec", 999)


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A field without a definition.

    Attributes:
        path: Names of the fields that lead to the message with the unknown field.
        message: Full name of the message type.
        number: Number of the unknown field.
    """

    path: str
    message: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}: field {self.number} of {self.message.rpartition('.')[2]}"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Checks exports, and returns 1 if a message does not conform to the definitions."""
    parser = argparse.ArgumentParser(prog="check_against_platform", description=__doc__)
    parser.add_argument(
        "--protos", type=Path, required=True, help="folder with the platform's .proto files"
    )
    parser.add_argument("--plan", type=Path, required=True, nargs="+", help="exports")
    parsed = parser.parse_args(arguments)
    try:
        definitions = _Definitions(parsed.protos)
        return max([_check_export(path, definitions) for path in parsed.plan])
    except PlanError as e:
        print(f"check_against_platform: {e}", file=sys.stderr)
        return 2


class _Definitions:
    """The message types that a folder of .proto files and TensorFlow define.

    Raises:
        PlanError: The folder has no .proto files, defines no message type of exports, or has a file
            that protoc cannot compile.
    """

    def __init__(self, folder: Path) -> None:
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*.proto"))
        if not paths:
            raise PlanError(f"--protos: expected .proto files in {folder}, found none")
        self._pool = descriptor_pool.DescriptorPool()
        for file in _compiled(folder, [*map(str, paths), *_PACKED]).file:
            self._pool.Add(file)
        if not any(map(self.find, _MESSAGES.values())):
            expected = ", ".join(_MESSAGES.values())
            raise PlanError(f"--protos: expected one of {expected} in {folder}, found none")

    def find(self, name: str) -> Any:
        """Returns the class of a message type; None if the type is undefined."""
        with contextlib.suppress(KeyError):
            return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
        return None


def _compiled(folder: Path, names: Sequence[str]) -> descriptor_pb2.FileDescriptorSet:
    from grpc_tools import protoc  # Only in development environments.

    includes = [folder, tf.sysconfig.get_include(), Path(protoc.__file__).with_name("_proto")]
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "definitions"
        flags = ["--include_imports", f"--descriptor_set_out={output}"]
        if protoc.main(["protoc", *(f"-I{path}" for path in includes), *flags, *names]):
            raise PlanError(f"--protos: protoc cannot compile {folder} (above: its messages)")
        return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())


def _check_export(path: Path, definitions: _Definitions) -> int:
    export = open_export(path)
    contents = {name: export.read(name) for name in _MESSAGES if (path / name).is_file()}
    print(f"{path}:")
    lines = [_line(name, content, definitions) for name, content in contents.items()]
    for line, _ in lines:
        print(f"  {line}")
    return int(not all(right for _, right in lines))


def _line(name: str, content: bytes, definitions: _Definitions) -> tuple[str, bool]:
    """Returns a line about the file, and whether it conforms to the definitions."""
    kind = definitions.find(_MESSAGES[name])
    if kind is None:
        return f"{name}: not checked, {_MESSAGES[name]} is not among the definitions", True
    what = f"{name}, {kind.DESCRIPTOR.name}"
    try:
        if name == _TASK:
            json_format.Parse(content.decode(), kind())
            return f"{what}: known fields only", True
        value = kind.FromString(content)
        unknown = list(unknown_in(value, name, definitions.find))
    except (json_format.ParseError, message.DecodeError, UnicodeDecodeError) as e:
        return f"{what}: {reason(e)}", False
    foreign = [field for field in unknown if (field.message, field.number) != _ADDED]
    if foreign:
        how_many = f"{len(foreign)} unknown field{'s' * (len(foreign) > 1)}"
        return f"{what}: {how_many}: {foreign[0]}", False
    if value.SerializeToString(deterministic=True) != content:
        return f"{what}: {len(content):,} bytes, and others when written again", False
    text = "known fields only"
    if unknown:
        text += f", but for On-Device Personalization's {_ADDED[1]} (example_selector)"
    return f"{what}: {text}; {len(content):,} bytes, the same when written again", True


def unknown_in(value: Any, path: str, find: Any) -> Iterator[Unknown]:
    """Yields the unknown fields of a message and of all messages in it, including graphs.

    Args:
        path: Name of the message.
        find: Called with the full name of a message type; returns the type's class, or None.

    Raises:
        DecodeError: A packed message cannot be parsed.
    """
    name = value.DESCRIPTOR.full_name
    for field in unknown_fields.UnknownFieldSet(value):
        yield Unknown(path, name, field.field_number)
    if name == "google.protobuf.Any":
        packed = find(value.type_url.rpartition("/")[2])
        if packed is not None:
            yield from unknown_in(packed.FromString(value.value), path, find)
        return
    for field, content in value.ListFields():
        here = f"{path}: {field.name}"
        if field.full_name in _GRAPHS:
            yield from unknown_in(find(_GRAPHS[field.full_name]).FromString(content), here, find)
        for child in _children(field, content):
            yield from unknown_in(child, here, find)


def _children(field: Any, content: Any) -> Sequence[Any]:
    """Returns the messages in a field's value."""
    if field.message_type is None:
        return ()
    if isinstance(content, Mapping):
        return [child for child in content.values() if isinstance(child, message.Message)]
    return content if field.label == field.LABEL_REPEATED else [content]


if __name__ == "__main__":
    sys.exit(main())
