"""Algorithms: a state and three pure TensorFlow functions each, and their TFF form."""

from tff_agnostic.computations.aggregation import PlainSum, SecureBounds, SecureSum
from tff_agnostic.computations.agnostic_fed_avg import agnostic_fed_avg, build_agnostic_fed_avg
from tff_agnostic.computations.algorithm import AlgorithmParams, FederatedAlgorithm
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.computations.evaluation import build_evaluation
from tff_agnostic.computations.fed_avg import build_fed_avg, fed_avg, fed_avg_target_only
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.computations.registry import ALGORITHMS
from tff_agnostic.computations.secure_check import security_report
from tff_agnostic.computations.template import build_learning_process

__all__ = [
    "ALGORITHMS",
    "AlgorithmParams",
    "DomainWeightsParams",
    "FederatedAlgorithm",
    "LocalTrainingParams",
    "PlainSum",
    "SecureBounds",
    "SecureSum",
    "agnostic_fed_avg",
    "build_agnostic_fed_avg",
    "build_evaluation",
    "build_fed_avg",
    "build_learning_process",
    "fed_avg",
    "fed_avg_target_only",
    "security_report",
]
