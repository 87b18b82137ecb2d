"""Digits with a noisy and a rare domain, on which domain weights that follow losses fail."""
