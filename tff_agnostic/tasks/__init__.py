"""Tasks: client data, a model, metrics and hyperparameters, each in one file."""
