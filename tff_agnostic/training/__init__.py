"""Training and evaluation in memory."""
