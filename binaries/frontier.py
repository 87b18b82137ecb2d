"""Trains with fixed domain weights on a grid, to show how close algorithms come to the best.

Example: ./run frontier --task=digits --algorithms=fed_avg,agnostic_fed_avg --trials=3
"""

from tff_agnostic.program.studies.frontier_command import FRONTIER

if __name__ == "__main__":
    FRONTIER.main(__doc__)
