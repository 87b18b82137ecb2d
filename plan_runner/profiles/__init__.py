"""The kinds of plans, and how a round of each is summed."""
