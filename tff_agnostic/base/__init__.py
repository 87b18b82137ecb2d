"""What every layer of the library builds on."""
