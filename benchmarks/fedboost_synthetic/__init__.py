"""FedBoost on point masses: the synthetic experiment of Hamer et al. 2020."""
