"""Differential privacy of runs: releases, their accounts, and the stated guarantee."""
