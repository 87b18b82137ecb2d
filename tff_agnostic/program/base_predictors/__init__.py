"""Base predictors of ensembles: where they come from, and what was learned of them."""
