"""What differential privacy a run has: what it releases, its account, and what is promised."""

from tff_agnostic.privacy.accountant import (
    ACCOUNTANTS,
    PrivacyAccountant,
    PrivacyStatement,
    check_delta,
    default_delta,
    noise_for_epsilon,
    rounds_for_budget,
    statement,
)
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import (
    CLIP_BIT,
    BudgetSplit,
    CentralNoise,
    Group,
    Mechanism,
    TreeNoise,
    clip_bit_stddev,
    effective_noise_multiplier,
)
from tff_agnostic.privacy.sampling import (
    COHORT_SAMPLINGS,
    CohortSampling,
    CountedCohorts,
    EveryClient,
    FixedSizeCohorts,
    PoissonCohorts,
    SecretCohorts,
    StratifiedCohorts,
)
from tff_agnostic.privacy.tree import Participations, squared_sensitivity

__all__ = [
    "ACCOUNTANTS",
    "CLIP_BIT",
    "COHORT_SAMPLINGS",
    "BudgetSplit",
    "CentralNoise",
    "CohortSampling",
    "CountedCohorts",
    "DistributedNoise",
    "EveryClient",
    "FixedSizeCohorts",
    "Group",
    "IntegerGroup",
    "Mechanism",
    "Participations",
    "PoissonCohorts",
    "PrivacyAccountant",
    "PrivacyStatement",
    "SecretCohorts",
    "StratifiedCohorts",
    "TreeNoise",
    "check_delta",
    "clip_bit_stddev",
    "default_delta",
    "effective_noise_multiplier",
    "noise_for_epsilon",
    "rounds_for_budget",
    "squared_sensitivity",
    "statement",
]
