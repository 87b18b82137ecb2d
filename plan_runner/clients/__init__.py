"""Clients: their examples, and their graph in a session and in TFLite's interpreter."""
