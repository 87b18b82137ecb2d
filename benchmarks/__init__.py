"""What measures this package beside others, from a checkout; nothing of it is installed.

Python packages that bring a `benchmarks` of their own hide a folder of that name without this file.
"""
