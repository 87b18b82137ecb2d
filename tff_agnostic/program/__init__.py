"""Everything around the rounds: configuration, the loop, checkpoints, metrics, reports."""
