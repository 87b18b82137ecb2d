"""Ensembles: mixtures sum_k alpha_k h_k of trained predictors, as models with the weights alpha."""
