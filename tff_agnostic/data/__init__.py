"""Client datasets and the sampling of cohorts."""
