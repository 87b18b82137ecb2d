"""Differential privacy of runs: releases, their account, and the guarantee that is stated."""
