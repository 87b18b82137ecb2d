"""Creates base predictors for an ensemble: a unigram model per domain or per client.

Example: ./run base_predictors --task=unigram --data=posts.store --output=predictors.npz
"""

from tff_agnostic.program.commands.base_predictors import BASE_PREDICTORS

if __name__ == "__main__":
    BASE_PREDICTORS.main(__doc__)
