"""The game between the weights and lambda: gradients of both players, and steps along them."""
