"""What every format reads into: examples with client, domain and place; an import's options."""
