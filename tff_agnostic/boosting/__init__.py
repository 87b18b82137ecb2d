"""Ensembles with weights alpha, and the parts of FedBoost: sampling, messages, steps of alpha."""
