"""Sums of client outputs: plain, secure, and with differential privacy."""
