"""Computes epsilon, or the noise or the number of rounds for a given epsilon, without training.

Example: ./run privacy --clients=100000 --clients_per_round=1000 --rounds=500 --target_epsilon=4
"""

from tff_agnostic.program.commands.privacy import PRIVACY

if __name__ == "__main__":
    PRIVACY.main(__doc__)
