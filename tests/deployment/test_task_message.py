"""Messages that create tasks match the platform's definition."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tff_agnostic.base.errors import UserError
from tff_agnostic.deployment.backends import ServerTaskSettings, task_message
from tff_agnostic.deployment.rounds import EVALUATION, KINDS, TRAINING

_TYPES = descriptor_pb2.FieldDescriptorProto
_KINDS = {"text": _TYPES.TYPE_STRING, "long": _TYPES.TYPE_INT64, "int": _TYPES.TYPE_INT32}
# Fields, their numbers and types, from shuffler/proto/task.proto and common.proto of the On-Device
# Personalization server at commit 015930f.
_MESSAGES = {
    "CreateTaskRequest": {"task": (1, "Task")},
    "Task": {
        "population_name": (1, "text"),
        "task_id": (2, "long"),
        "total_iteration": (3, "long"),
        "min_aggregation_size": (4, "long"),
        "max_aggregation_size": (5, "long"),
        "min_client_version": (14, "text"),
        "max_client_version": (15, "text"),
        "info": (20, "TaskInfo"),
    },
    "TaskInfo": {
        "traffic_weight": (1, "long"),
        "training_info": (2, "TrainingInfo"),
        "evaluation_info": (3, "EvaluationInfo"),
    },
    "TrainingInfo": {"eligibility_task_info": (1, "EligibilityTaskInfo")},
    "EligibilityTaskInfo": {"eligibility_policies": (1, "many EligibilityPolicyEvalSpec")},
    "EligibilityPolicyEvalSpec": {
        "id": (1, "text"),
        "min_sep_policy": (2, "MinimumSeparationPolicy"),
        "data_availability_policy": (3, "DataAvailabilityPolicy"),
    },
    "MinimumSeparationPolicy": {"current_index": (1, "long"), "minimum_separation": (2, "long")},
    "DataAvailabilityPolicy": {"min_example_count": (1, "int")},
    "EvaluationInfo": {
        "check_point_selector": (1, "CheckPointSelector"),
        "training_population_name": (2, "text"),
        "training_task_id": (3, "long"),
    },
    "CheckPointSelector": {
        "iteration_selector": (1, "EveryKIterationsCheckpointSelector"),
        "duration_selector": (2, "EveryKHoursCheckpointSelector"),
    },
    "EveryKIterationsCheckpointSelector": {"size": (1, "long")},
    "EveryKHoursCheckpointSelector": {"hours": (1, "long")},
}


@pytest.fixture(scope="module")
def request_type():
    file = descriptor_pb2.FileDescriptorProto(name="task.proto", package="odp", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            many, _, inner = kind.rpartition(" ")
            label = _TYPES.LABEL_REPEATED if many else _TYPES.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if inner in _KINDS:
                field.type = _KINDS[inner]
            else:
                field.type, field.type_name = _TYPES.TYPE_MESSAGE, f".odp.{inner}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("odp.CreateTaskRequest")
    return message_factory.GetMessageClass(descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_task_messages_have_known_fields_only(request_type, kind):
    written = task_message(kind, ServerTaskSettings(), 10)
    message = json_format.ParseDict(written, request_type())
    # `ParseDict` rejects unknown fields; `MessageToDict` omits defaults.
    assert json_format.MessageToDict(message) == written


def test_training_message_contains_the_settings(request_type):
    settings = ServerTaskSettings("fleet", iterations=200, over_selection=0.5)
    task = json_format.ParseDict(task_message(TRAINING, settings, 10), request_type()).task
    assert (task.population_name, task.total_iteration) == ("fleet", 200)
    assert (task.min_aggregation_size, task.max_aggregation_size) == (10, 15)
    policies = task.info.training_info.eligibility_task_info.eligibility_policies
    assert [p.min_sep_policy.minimum_separation for p in policies] == [1, 0]
    assert [p.data_availability_policy.min_example_count for p in policies] == [0, 1]
    assert len({policy.id for policy in policies}) == 2
    assert not task.info.HasField("evaluation_info")


def test_evaluation_message_refers_to_the_training(request_type):
    message = task_message(EVALUATION, ServerTaskSettings("fleet"), 10)
    info = json_format.ParseDict(message, request_type()).task.info
    assert info.evaluation_info.check_point_selector.iteration_selector.size == 1
    assert info.evaluation_info.training_population_name == "fleet"
    assert not info.HasField("training_info")


def test_invalid_population_raises():
    with pytest.raises(UserError, match=r"^population: expected a name of letters"):
        ServerTaskSettings("")
