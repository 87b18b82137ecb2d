"""How each public format is read."""
