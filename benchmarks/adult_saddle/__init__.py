"""Adult's exact saddle, and Stochastic-AFL on the way to it."""
