"""Searches for settings on the held-out split, with the same budget for every algorithm.

Example: ./run tune --task=digits --search="client_learning_rate=log:0.1..16" --trials=20
"""

from tff_agnostic.program.studies.tune import TUNE

if __name__ == "__main__":
    TUNE.main(__doc__)
