"""FedBoost on the words of a text, with draws of many seeds."""
