"""A noisy and a rare domain of digits, on which lambda that follows losses gives one up."""
