"""`./run privacy --audit`: the rounds of given settings attacked, and what that proves of a claim."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from scipy import stats
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.aggregations.private.distributed_sum import DistributedSum
from tff_agnostic.aggregations.private.registry import PRIVACIES, NoiseFacts
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.computations.aggregated import AggregatedRound
from tff_agnostic.data.sampling import SecretCoins, poisson_cohort, sample_cohort, turns
from tff_agnostic.errors import UserError
from tff_agnostic.models import logistic_regression
from tff_agnostic.privacy.distributed_mechanism import DistributedNoise
from tff_agnostic.privacy.lower_bound import CONFIDENCE
from tff_agnostic.privacy.mechanism import CentralNoise, TreeNoise
from tff_agnostic.privacy.options import AccountingOptions
from tff_agnostic.privacy.sampling import (
    CountedCohorts,
    FixedSizeCohorts,
    PoissonCohorts,
    SecretCohorts,
    StratifiedCohorts,
)
