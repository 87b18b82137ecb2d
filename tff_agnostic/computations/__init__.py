"""What algorithms are made of: exchanges and their parts, aggregations, and their TFF form."""

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits, PlainSum
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.computations.algorithm import Algorithm, AnswerAndKept, Exchange, RunState
from tff_agnostic.computations.tff_process import build_evaluation, build_learning_process
from tff_agnostic.computations.verification import security_report

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
