"""Trains one model with one algorithm on one task.

Example: ./run train --task=digits --algorithm=agnostic_fed_avg --output_dir=runs/mine
"""

from tff_agnostic.program.commands.train import TRAIN

if __name__ == "__main__":
    TRAIN.main(__doc__)
