"""Reproduces a table of a paper: trials of every algorithm, next to the paper's numbers.

Example: ./run reproduce --experiment=adult --data_dir=data/adult --trials=5
"""

from tff_agnostic.program.experiments.reproduce import REPRODUCE

if __name__ == "__main__":
    REPRODUCE.main(__doc__)
