"""Digits with a noisy and a rare domain: lambda that follows losses neglects one of them."""
