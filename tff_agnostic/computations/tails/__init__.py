"""The clients with the largest losses, found without that the server sees the loss of any."""
