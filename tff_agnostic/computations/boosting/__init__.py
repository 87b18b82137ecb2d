"""FedBoost's parts: which predictors are sent, what clients answer, and how alpha moves."""
