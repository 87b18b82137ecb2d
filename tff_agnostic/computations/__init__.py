"""What algorithms are made of: exchanges and their parts, aggregations, and their TFF form."""

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.computations.exchange import Algorithm, AnswerAndKept, Exchange, RunState
from tff_agnostic.computations.secure_check import security_report
from tff_agnostic.computations.template import build_evaluation, build_learning_process

__all__ = [
    "AGGREGATIONS",
    "Algorithm",
    "AnswerAndKept",
    "Bound",
    "ClientLimits",
    "Exchange",
    "PlainSum",
    "RunState",
    "SecureSum",
    "SecureSumOptions",
    "build_evaluation",
    "build_learning_process",
    "security_report",
]
