"""Parses a plan's protobuf messages without TensorFlow, and rejects unknown fields."""

from collections.abc import Collection
from typing import Any, TypeVar

from google.protobuf import message

from plan_runner import plan_pb2
from plan_runner.errors import PlanError, reason
from plan_runner.export import CLIENT_ONLY_PLAN, PLAN, Export

PLAN_VERSION = 1

_M = TypeVar("_M", bound=message.Message)


def parse(kind: type[_M], content: bytes, where: str) -> _M:
    """Parses a message of `plan.proto`, and rejects unknown fields."""
    value = parse_foreign(kind, content, where)
    _check_known(value, where)
    return value


def parse_foreign(kind: type[_M], content: bytes, where: str) -> _M:
    """Parses a TensorFlow message, which may have unknown fields."""
    try:
        return kind.FromString(content)  # type: ignore[no-any-return, unused-ignore]
    except message.DecodeError as e:
        expected = f"{where}: expected {kind.DESCRIPTOR.name}"
        raise PlanError(f"{expected}, cannot parse it ({reason(e)})") from e


def parse_plan(content: bytes, where: str) -> plan_pb2.Plan:
    """Parses a plan, and checks that it has one phase."""
    plan = parse(plan_pb2.Plan, content, where)
    if plan.version != PLAN_VERSION:
        raise PlanError(f"{where}: version: expected {PLAN_VERSION}, found {plan.version}")
    if len(plan.phase) != 1:
        raise PlanError(f"{where}: phase: expected one, found {len(plan.phase)}")
    return plan


def read_plans(export: Export) -> tuple[plan_pb2.Plan, plan_pb2.ClientOnlyPlan]:
    """Reads an export's plan and its client-only plan for devices."""
    plan = parse_plan(export.read(PLAN), PLAN)
    return plan, parse(plan_pb2.ClientOnlyPlan, export.read(CLIENT_ONLY_PLAN), CLIENT_ONLY_PLAN)


def check_parts(
    value: Any, where: str, required: Collection[str], optional: Collection[str] = ()
) -> None:
    """Checks that a message has all required fields, and no others except optional ones."""
    names = [field.name for field, _ in value.ListFields()]
    for name in required:
        if name not in names:
            raise PlanError(f"{where}: expected the part {name}, found none")
    for name in names:
        if name not in required and name not in optional:
            raise PlanError(f"{where}: expected no part {name} in this profile, found one")


def _check_known(value: Any, where: str) -> None:
    copy = type(value)()
    copy.CopyFrom(value)
    copy.DiscardUnknownFields()
    if copy.ByteSize() == value.ByteSize():
        return
    for field, content in value.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        if is_map and field.message_type.fields_by_name["value"].message_type is None:
            continue
        one = isinstance(content, message.Message)
        for child in content.values() if is_map else [content] if one else content:
            _check_known(child, f"{where}: {field.name}")
    raise PlanError(f"{where}: expected only known fields, found an unknown field")
