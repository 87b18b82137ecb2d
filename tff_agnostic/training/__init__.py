"""Training and evaluation in memory: problems, the loop of rounds, observers, private training."""
