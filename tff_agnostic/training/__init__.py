"""Training and evaluation in memory: problems, the training loop, evaluation, private training."""
