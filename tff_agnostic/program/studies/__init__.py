"""Studies, which make many runs: comparisons, frontiers, searches and recommendations."""
