"""Tasks, which define client data, domains, a model and metrics."""
