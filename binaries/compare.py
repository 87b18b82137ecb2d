"""Compares algorithms on one task over several seeds: tables, JSON and figures.

Example: ./run compare --task=digits --algorithms=fed_avg,agnostic_fed_avg --trials=5
"""

from tff_agnostic.program.studies.compare import COMPARE

if __name__ == "__main__":
    COMPARE.main(__doc__)
