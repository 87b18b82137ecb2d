"""What measures this package beside others, from a checkout; nothing of it is installed."""
