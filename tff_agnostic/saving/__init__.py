"""Trained models as files that plain TensorFlow reads."""
