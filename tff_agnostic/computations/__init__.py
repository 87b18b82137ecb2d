"""Algorithms: a state and three pure TensorFlow functions each, and their TFF form."""
