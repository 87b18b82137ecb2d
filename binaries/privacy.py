"""Prints epsilon of settings, noise for an epsilon, or rounds for a budget, without training.

Example: ./run privacy --clients=100000 --clients_per_round=1000 --rounds=500 --target_epsilon=4
"""

from tff_agnostic.program.commands.privacy import PRIVACY

if __name__ == "__main__":
    PRIVACY.main(__doc__)
