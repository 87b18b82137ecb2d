"""Prints epsilon of settings, noise for an epsilon, or rounds for a budget, without training.

Example: ./run privacy --clients=100000 --clients_per_round=1000 --rounds=500 --target_epsilon=4

With --audit it also attacks rounds of these settings, and compares what the attack proves with the
epsilon that is claimed.
"""

from tff_agnostic.program.studies.privacy_planning import PRIVACY

if __name__ == "__main__":
    PRIVACY.main(__doc__)
