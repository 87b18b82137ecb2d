"""The exact saddle point of logistic regression on Adult, and Stochastic-AFL's duality gap."""
