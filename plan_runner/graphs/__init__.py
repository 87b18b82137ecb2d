"""The graphs of a plan and their checkpoints: what they may hold, and sessions that run them."""
