"""Many runs: comparisons, frontiers, searches, and plans of privacy."""
