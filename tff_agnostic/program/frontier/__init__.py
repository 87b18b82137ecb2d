"""What training on fixed mixtures of the domains can attain, and where algorithms end."""
