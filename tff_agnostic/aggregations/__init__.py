"""How the answers of clients are summed: as they are, or as integers in secure sums."""
