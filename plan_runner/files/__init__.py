"""Reads the files of an export without trusting them, and without TensorFlow."""
