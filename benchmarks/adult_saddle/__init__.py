"""Adult's exact saddle, and the duality gap of Stochastic-AFL."""
