"""Ensembles with weights alpha, and FedBoost's parts: sampling, messages, how alpha moves."""
