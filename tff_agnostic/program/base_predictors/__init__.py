"""Base predictors of ensembles: their sources, files and fingerprints."""
