"""Recommends a training method for your data, by trials evaluated on validation clients.

Example: ./run recommend --task=digits
"""

from tff_agnostic.program.studies.recommend import RECOMMEND

if __name__ == "__main__":
    RECOMMEND.main(__doc__)
